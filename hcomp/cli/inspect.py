"""Show what is in an artifact or how a model would be placed."""

from __future__ import annotations

import argparse
import json

from hcomp.cli.options import add_json, is_artifact, read_plan, write_file
from hcomp.errors import UsageError


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", help="an artifact, a plan.json or an ONNX file")
    parser.add_argument("--text", action="store_true", help="print the graph's text instead of the plan")
    parser.add_argument("--dot", metavar="FILE", help="write the plan for Graphviz ('-': standard output)")
    parser.add_argument("--svg", metavar="FILE", help="write the plan as a picture ('-': standard output)")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print or write the forms that were asked for; without any, the plan as text."""
    if options.text:
        print(_graph_text(options.file), end="")
        return 0
    plan = read_plan(options.file)
    if options.dot:
        write_file(options.dot, plan.to_dot())
    if options.svg:
        write_file(options.svg, plan.to_svg())
    if options.json:
        print(json.dumps({"plan": plan.to_json(), "summary": plan.summary()}, indent=1))
    elif not (options.dot or options.svg):
        print(plan.to_text())
    return 0


def _graph_text(path: str) -> str:
    if is_artifact(path):
        from hcomp.artifact.store import Artifact

        return bytes(Artifact.open(path).member("graph.hir")).decode()
    if path.endswith(".json"):
        raise UsageError(f"{path}: a plan holds no graph; give the artifact or the model")
    from hcomp.compiler import captured_graph
    from hcomp.ir.printer import print_graph

    return print_graph(captured_graph(path))
