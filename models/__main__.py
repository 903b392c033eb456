"""Write the built models as files: `python -m models DIRECTORY [NAME ...]`."""

import argparse
import sys
from pathlib import Path

import onnx

from models import MODELS


def main() -> int:
    """Write `DIRECTORY/NAME.onnx` for each named model, for all without a name."""
    arguments = argparse.ArgumentParser(prog="python -m models", description="write built models")
    arguments.add_argument("directory", type=Path)
    arguments.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODELS))
    parsed = arguments.parse_args()
    unknown = sorted(set(parsed.names) - set(MODELS))
    if unknown:
        arguments.error(f"no model {unknown[0]!r}; there are {', '.join(MODELS)}")
    parsed.directory.mkdir(parents=True, exist_ok=True)
    for name in parsed.names or MODELS:
        model, _ = MODELS[name]()
        onnx.save(model, parsed.directory / f"{name}.onnx")
    return 0


if __name__ == "__main__":
    sys.exit(main())
