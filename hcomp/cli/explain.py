"""Say why a node runs where it does: every device, its time, or why it cannot."""

from __future__ import annotations

import argparse

from hcomp.cli.files import read_plan
from hcomp.cli.options import add_json, report


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", help="an artifact, a plan.json or an ONNX file")
    parser.add_argument("node", help="the node's name in the model, a value's name, or a pattern")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print the explanation."""
    plan = read_plan(options.file)
    report(options, plan.find(options.node), plan.explain(options.node))
    return 0
