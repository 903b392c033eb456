"""Which nodes of the graph each call of a kernel stands for, after TVM has fused operators.

FuseOps makes a function of each group and merges equal ones, so a function's own body names the nodes
of one call only. Each call is therefore matched with the bindings from before: by the functions
inside, and the values that they read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from tvm import relax
from tvm.ir import PrimType

Var: TypeAlias = Any
Origins: TypeAlias = Mapping[Var, tuple[str, ...]]
"""Variables of the region's function to the labels of the nodes that they compute."""


def call_nodes(before: Any, after: Any, origins: Origins) -> list[tuple[str, tuple[str, ...]]]:
    """Return the kernel and the nodes of each call in the region's function, in order.

    Args:
        before: the module as it was lowered.
        after: the same after FuseOps, before FuseTIR.
        origins: the node of each binding of `before`; a call that matches none has no nodes.
    """
    return _Match(before, after, origins).calls()


def region_function(module: Any) -> Any:
    """Return the function that calls the kernels: `region` where `main` only computes sizes, a loop's trip."""
    names = {str(v.name_hint): f for v, f in module.functions.items() if isinstance(f, relax.Function)}
    return names.get("region") or names.get("trip") or names["main"]


def kernel_calls(function: Any) -> list[str]:
    """Return the names of the functions that a Relax function calls by call_tir, in order."""
    found = (_callee(binding.value) for binding in _bindings(function))
    return [name for name in found if name is not None]


class _Match:
    def __init__(self, before: Any, after: Any, origins: Origins) -> None:
        self.origins = origins
        self.function = region_function(after)
        self.groups = {str(v.name_hint): f for v, f in after.functions.items()}
        self.known: dict[Any, list[Var]] = defaultdict(list)
        old = region_function(before)
        self.values: dict[Var, Any] = dict(zip(self.function.params, old.params, strict=False))
        for binding in _bindings(old):
            if (key := self._key(binding.value, {})) is not None:
                self.known[key].append(binding.var)

    def calls(self) -> list[tuple[str, tuple[str, ...]]]:
        found = []
        for binding in _bindings(self.function):
            value = binding.value
            group = self._group(value)
            nodes: list[str] = []
            if group is None:
                self.values[binding.var] = self._find(value, self.values, nodes)
                name = _callee(value)
            else:
                arguments = (self._resolve(a, self.values) for a in value.args)
                inner = dict(zip(group.params, arguments, strict=False))
                for part in _bindings(group):
                    inner[part.var] = self._find(part.value, inner, nodes)
                self.values[binding.var] = self._resolve(group.body.body, inner)
                name = str(value.op.name_hint)
            if name is not None:
                found.append((name, tuple(dict.fromkeys(nodes))))
        return found

    def _group(self, value: Any) -> Any:
        if not isinstance(value, relax.Call) or not isinstance(value.op, relax.GlobalVar):
            return None
        group = self.groups.get(str(value.op.name_hint))
        return group if isinstance(group, relax.Function) else None

    def _find(self, value: Any, values: Mapping[Var, Any], nodes: list[str]) -> Any:
        """Return the old variable (or a tuple of them) of a new value; a call's node goes to `nodes`."""
        key = self._key(value, values)
        if key is None:
            return self._resolve(value, values)
        kept = self.known.get(key, ())
        if not kept:
            return None
        found = kept.pop(0) if len(kept) > 1 else kept[0]
        if key[0] != "item" and found in self.origins and _callee(value) is not None:
            nodes += self.origins[found]
        return found

    def _key(self, value: Any, values: Mapping[Var, Any]) -> tuple[Any, ...] | None:
        """Return what tells a call or an item from others, in terms of old variables."""
        if isinstance(value, relax.TupleGetItem):
            whole = self._resolve(value.tuple_value, values)
            return None if isinstance(whole, tuple) else ("item", whole, int(value.index))
        if not isinstance(value, relax.Call):
            return None
        name = _callee(value)
        if name is None:  # a view, such as a reshape
            return (str(getattr(value.op, "name", "")), *(self._operand(a, values) for a in value.args))
        arguments = value.args[1]
        fields = arguments.fields if isinstance(arguments, relax.Tuple) else [arguments]
        return (name, *(self._operand(f, values) for f in fields))

    def _operand(self, value: Any, values: Mapping[Var, Any]) -> Any:
        """Return an argument as a part of a key; constants and sizes all look alike."""
        size = isinstance(getattr(value, "ty", None), PrimType)
        known = isinstance(value, relax.Var | relax.TupleGetItem) and not size
        return self._resolve(value, values) if known else None

    def _resolve(self, value: Any, values: Mapping[Var, Any]) -> Any:
        if isinstance(value, relax.Tuple):
            return tuple(self._resolve(f, values) for f in value.fields)
        if isinstance(value, relax.TupleGetItem):
            whole = self._resolve(value.tuple_value, values)
            return whole[int(value.index)] if isinstance(whole, tuple) else None
        return values.get(value, value) if isinstance(value, relax.Var) else None


def _bindings(function: Any) -> Sequence[Any]:
    body = function.body
    return [binding for block in getattr(body, "blocks", ()) for binding in block.bindings]


def _callee(value: Any) -> str | None:
    """Return the name of the function that a call_tir calls, or None for anything else."""
    if isinstance(value, relax.Call) and str(getattr(value.op, "name", "")) == "relax.call_tir":
        return str(value.args[0].name_hint)
    return None


def aligned(calls: Sequence[tuple[str, tuple[str, ...]]], names: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Return the calls that are still there: `names` is what is left of them, in order."""
    found, rest = [], iter(calls)
    for name in names:
        nodes = next((nodes for called, nodes in rest if called == name), ())
        found.append((name, nodes))
    return found
