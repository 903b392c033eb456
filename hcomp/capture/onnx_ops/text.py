"""Operators on strings that have a meaning without a tokenizer."""

from __future__ import annotations

from hcomp.capture.context import Converter, NodeContext

_CASES = {"NONE": "", "LOWER": "lower", "UPPER": "upper"}
_OWN_RULES = ("tr", "az", "lt")
"""Languages to which Unicode's SpecialCasing.txt gives conditional mappings."""


def _string_normalizer(c: NodeContext) -> str:
    """StringNormalizer by Unicode's own case rules: no locale need be installed."""
    locale = str(c.attr("locale", "en_US"))
    if locale[:2].lower() in _OWN_RULES:
        raise c.refuse(f"the locale {locale!r} has case rules of its own")
    action = c.attr("case_change_action", "NONE")
    if action not in _CASES:
        raise c.refuse(f"case_change_action must be one of {sorted(_CASES)}, found {action!r}")
    return c.emit(
        "string_normalize", 0, case=_CASES[action],
        case_sensitive=bool(c.attr("is_case_sensitive", 0)), stopwords=tuple(c.attr("stopwords") or ()),
    )  # fmt: skip


TEXT: dict[str, Converter] = {"StringNormalizer": _string_normalizer}
