"""Show how two plans differ."""

from __future__ import annotations

import argparse

from hcomp.cli.files import read_plan
from hcomp.cli.options import add_json, report


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("before", help="an artifact, a plan.json or an ONNX file")
    parser.add_argument("after", help="the other one")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print the differences; nothing where there are none."""
    text = read_plan(options.before).diff(read_plan(options.after))
    if options.json or text:
        report(options, text.splitlines(), text)
    return 0
