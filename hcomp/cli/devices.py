"""List the devices that this hcomp can plan for, and whether they are real here."""

from __future__ import annotations

import argparse

from hcomp.cli.options import add_json, report, table


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print one line a device."""
    from hcomp.targets import describe_targets

    found = describe_targets()
    report(options, found, table([[d["name"], d["state"], d["detail"]] for d in found]))
    return 0
