"""Compute cycles of the NPU's array beside SCALE-Sim's: in the mode without overlap they must agree.

SCALE-Sim 3.0.0 (`pip install scalesim numpy==1.26.4` in an environment of its own) ran the layers below in its mode
CALC; its column "Total Cycles" counts from 0, so that it is one less than the cycles. With `--scalesim PYTHON`, the
interpreter of such an environment runs them again. The equations of both are those of Samajdar et al., ISPASS 2020,
section III.

    python scripts/npu_scalesim.py [--scalesim PYTHON]
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from hcomp.targets.npu.device.cycles import Durations
from hcomp.targets.npu.device.isa import OS, WS
from hcomp.targets.npu.device.machine import Machine, load_machine

FLOWS = {"os": OS, "ws": WS}
LIMIT = 0.02
CONFIG = """[general]
run_name = run
[architecture_presets]
ArrayHeight : {size}
ArrayWidth : {size}
IfmapSramSzkB : 4096
FilterSramSzkB : 4096
OfmapSramSzkB : 4096
IfmapOffset : 0
FilterOffset : 10000000
OfmapOffset : 20000000
Dataflow : {flow}
Bandwidth : 64
MemoryBanks : 1
ReadRequestBuffer : 64
WriteRequestBuffer : 64
[layout]
IfmapCustomLayout : False
FilterCustomLayout : False
[sparsity]
SparsitySupport : false
[run_presets]
InterfaceBandwidth : CALC
UseRamulatorTrace : False
"""


@dataclass(frozen=True)
class Layer:
    """A product [m, k] x [k, n] and SCALE-Sim's "Total Cycles" of it by (dataflow, edge of the array)."""

    name: str
    m: int
    n: int
    k: int
    cycles: dict[tuple[str, int], int]


def _layer(name: str, m: int, n: int, k: int, os32: int, os128: int, ws32: int, ws128: int) -> Layer:
    return Layer(name, m, n, k, {("os", 32): os32, ("os", 128): os128, ("ws", 32): ws32, ("ws", 128): ws128})


LAYERS = (
    _layer("256x384x512", 256, 384, 512, 55103, 4595, 67199, 7655),
    _layer("bert_o", 128, 768, 768, 79679, 6131, 127871, 18359),
    _layer("attention", 128, 128, 64, 2015, 317, 1775, 509),
    _layer("odd", 100, 200, 300, 10135, 1107, 13579, 2891),
    _layer("conv3x3 14x14x64->64", 196, 64, 576, 8931, 1659, 10439, 2889),
    _layer("conv1x1 14x14x256->256", 196, 256, 256, 17807, 2039, 18559, 2311),
)


def machine_of(size: int) -> Machine:
    """Return the laptop part with an array of `size` x `size` cells."""
    machine = load_machine("laptop")
    return replace(machine, array=replace(machine.array, rows=size, columns=size))


def cycles(layer: Layer, flow: str, size: int, *, overlap: bool) -> int:
    """Return our compute cycles of a layer on an array of `size` x `size`, from the first step to the last result."""
    durations = Durations(machine_of(size), overlap=overlap)
    found = durations.gemm(layer.m, layer.k, layer.n, "int8", FLOWS[flow])
    return found.preload + found.occupied + found.latency


def run_scalesim(python: str, layers: tuple[Layer, ...], flow: str, size: int) -> list[int]:
    """Return the "Total Cycles" that SCALE-Sim counts now.

    Raises:
        CalledProcessError: it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "run.cfg").write_text(CONFIG.format(size=size, flow=flow))
        rows = [f"{i},{x.m},{x.n},{x.k}," for i, x in enumerate(layers)]
        (place / "gemm.csv").write_text("\n".join(["Layer,M,N,K,", *rows]) + "\n")
        (place / "layout.csv").write_text("Layer name,\n")
        options = ["-c", "run.cfg", "-t", "gemm.csv", "-l", "layout.csv", "-i", "gemm", "-s", "N", "-p", "out"]
        subprocess.run([python, "-m", "scalesim.scale", *options], cwd=place, check=True, stdout=subprocess.DEVNULL)
        (report,) = place.glob("out/**/COMPUTE_REPORT.csv")
        with report.open(newline="") as file:
            lines = list(csv.reader(file, skipinitialspace=True))
        column = next(i for i, title in enumerate(lines[0]) if title.strip() == "Total Cycles")
        return [round(float(line[column])) for line in lines[1:]]


def main() -> int:
    """Print a line a layer, dataflow and array; 1 where one differs by more than the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scalesim", metavar="PYTHON", help="run SCALE-Sim with this interpreter again")
    options = parser.parse_args()
    print(f"{'layer':24}{'flow':>5}{'array':>6}{'SCALE-Sim':>11}{'ours':>9}{'differs':>9}{'overlapped':>12}")
    worst = 0.0
    for flow, size in LAYERS[0].cycles:
        known = [layer.cycles[flow, size] for layer in LAYERS]
        theirs = run_scalesim(options.scalesim, LAYERS, flow, size) if options.scalesim else known
        for layer, count in zip(LAYERS, theirs, strict=True):
            ours = cycles(layer, flow, size, overlap=False)
            differs = ours / (count + 1) - 1
            worst = max(worst, abs(differs))
            hidden = cycles(layer, flow, size, overlap=True)
            print(f"{layer.name:24}{flow:>5}{size:>6}{count + 1:>11}{ours:>9}{differs:>9.2%}{hidden:>12}")
    print(f"largest difference {worst:.2%}, limit {LIMIT:.0%}; overlapped: weights, filling and draining are hidden")
    return 1 if worst > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
