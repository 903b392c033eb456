"""Compute cycles of the NPU's array beside SCALE-Sim's: in the mode without overlap they must agree.

SCALE-Sim 3.0.0 (`pip install scalesim numpy==1.26.4` in an environment of its own) ran the layers below in its mode
CALC; its column "Total Cycles" counts from 0, so that it is one less than the cycles. With `--scalesim PYTHON`, the
interpreter of such an environment runs them again. The equations of both are those of Samajdar et al., ISPASS 2020,
section III.

    python scripts/npu_scalesim.py [--scalesim PYTHON [--networks]]

`--networks` takes every different product and convolution of ResNet-50, MobileNet (the first) and BERT-base at 128
tokens instead, on an array of 128 x 128, which takes some ten minutes.
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
IfmapSRAMBankBandwidth : 64
IfmapSRAMBankNum : 64
IfmapSRAMBankPort : 2
FilterSRAMBankBandwidth : 64
FilterSRAMBankNum : 64
FilterSRAMBankPort : 2
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


def _conv(name: str, size: int, channels: int, kernel: int, filters: int) -> Layer:
    """Return a convolution with `size` x `size` outputs as the product that it is."""
    return Layer(
        f"{name} {kernel}x{kernel} {size}x{size} {channels}->{filters}", size**2, filters, channels * kernel**2, {}
    )


def network_layers() -> tuple[Layer, ...]:
    """Return the different products and convolutions of three networks, each once."""
    found = [_conv("resnet", 112, 3, 7, 64)]
    width = 64
    for size, middle in ((56, 64), (28, 128), (14, 256), (7, 512)):
        out = 4 * middle
        # The first block takes the stage before, by steps of 2 in its 3x3 and in its shortcut; the others are alike.
        entry = size if size == 56 else 2 * size
        found += [_conv("resnet", entry, width, 1, middle), _conv("resnet", size, width, 1, out)]
        found += [_conv("resnet", size, out, 1, middle), _conv("resnet", size, middle, 3, middle)]
        found.append(_conv("resnet", size, middle, 1, out))
        width = out
    found.append(_conv("mobilenet", 112, 3, 3, 32))
    for size, channels, filters in (
        (112, 32, 64), (56, 64, 128), (56, 128, 128), (28, 128, 256), (28, 256, 256), (14, 256, 512), (14, 512, 512),
        (7, 512, 1024), (7, 1024, 1024),
    ):  # fmt: skip
        # A depthwise convolution is a product of one channel and one filter, as often as there are channels.
        found += [_conv("mobilenet", size, 1, 3, 1), _conv("mobilenet", size, channels, 1, filters)]
    found += [
        Layer(f"bert {n}x{k}", 128, n, k, {}) for n, k in ((768, 768), (3072, 768), (768, 3072), (128, 64), (64, 128))
    ]
    return tuple({(layer.m, layer.n, layer.k): layer for layer in found}.values())


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
    """Return the "Total Cycles" that SCALE-Sim counts now; ends the program with its last words where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "run.cfg").write_text(CONFIG.format(size=size, flow=flow))
        rows = [f"{i},{x.m},{x.n},{x.k}," for i, x in enumerate(layers)]
        (place / "gemm.csv").write_text("\n".join(["Layer,M,N,K,", *rows]) + "\n")
        (place / "layout.csv").write_text(
            "\n".join(["Layer,", *(f"{i}," + "1," * 30 for i in range(len(layers)))]) + "\n"
        )
        options = ["-c", "run.cfg", "-t", "gemm.csv", "-l", "layout.csv", "-i", "gemm", "-s", "N", "-p", "out"]
        command = [python, "-m", "scalesim.scale", *options]
        done = subprocess.run(command, cwd=place, check=False, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{python}: SCALE-Sim failed: {(done.stderr.splitlines() or ['no message'])[-1]}")
        (report,) = place.glob("out/**/COMPUTE_REPORT.csv")
        with report.open(newline="") as file:
            lines = list(csv.reader(file, skipinitialspace=True))
        column = next(i for i, title in enumerate(lines[0]) if title.strip() == "Total Cycles")
        return [round(float(line[column])) for line in lines[1:]]


def main() -> int:
    """Print a line a layer, dataflow and array; 1 where one differs by more than the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scalesim", metavar="PYTHON", help="run SCALE-Sim with this interpreter again")
    parser.add_argument("--networks", action="store_true", help="the layers of three networks")
    options = parser.parse_args()
    if options.networks and not options.scalesim:
        parser.error("--networks has no recorded cycles: give --scalesim PYTHON too")
    layers = network_layers() if options.networks else LAYERS
    kinds = [("os", 128), ("ws", 128)] if options.networks else list(LAYERS[0].cycles)
    print(f"{'layer':34}{'flow':>5}{'array':>6}{'SCALE-Sim':>11}{'ours':>9}{'differs':>9}{'overlapped':>12}")
    worst = 0.0
    for flow, size in kinds:
        if options.scalesim:
            theirs = run_scalesim(options.scalesim, layers, flow, size)
        else:
            theirs = [layer.cycles[flow, size] for layer in layers]
        for layer, count in zip(layers, theirs, strict=True):
            ours = cycles(layer, flow, size, overlap=False)
            differs = ours / (count + 1) - 1
            worst = max(worst, abs(differs))
            hidden = cycles(layer, flow, size, overlap=True)
            print(f"{layer.name:34}{flow:>5}{size:>6}{count + 1:>11}{ours:>9}{differs:>9.2%}{hidden:>12}")
    print(f"largest difference {worst:.2%}, limit {LIMIT:.0%}; overlapped: weights, filling and draining are hidden")
    return 1 if worst > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
