"""Measure this processor: the peak of its multiply-adds, its memories, and what starting a kernel takes.

Every rate is the best of several laps: what disturbs a measurement makes it slower, never faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import tirx

from hcomp.codegen.kernels import build_region
from hcomp.codegen.relax_module import lower_region
from hcomp.ir.builder import GraphBuilder
from hcomp.ir.types import TensorType
from hcomp.machine import NAME, Machine, Memory
from hcomp.runtime.threads import load_thread_pool, physical_cores, use_threads
from hcomp.runtime.values import aligned_empty, to_tensor
from hcomp.runtime.vm import vm_region
from hcomp.targets.cpu.codegen import processor
from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.lowering import cpu_rules
from hcomp.targets.cpu.schedule import schedule_module
from hcomp.targets.cpu.schedule.nest import (
    PARALLEL,
    Expr,
    Stmt,
    buffer,
    imm,
    load_vector,
    loop,
    register_buffer,
    seq,
    spread,
    store_vector,
    var,
)
from hcomp.targets.cpu.thread_pool import thread_pool_object

LAP_SECONDS = 0.001
"""Of a lap: shorter than the turn that a busy system gives a process, so that some laps have the core to themselves."""
SECONDS = 0.3
LEAST_LAPS = 15
"""Of a measurement: laps for so long, and so many where one is long itself."""
_SMALLEST_MEMORY = 64 << 20
_LARGEST_MEMORY = 256 << 20
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_STEPS = 8
"""Vectors of one step of a loop over memory: enough to hide what a load or a sum takes."""


def calibrate() -> Machine:
    """Return this machine as measured now; takes some seconds."""
    cpu, target = processor()
    cores = physical_cores()
    kernels = _kernels()
    one, every = (_peak(kernels, cpu, threads) for threads in (1, cores))
    return Machine(
        name=NAME,
        processor=cpu.mcpu,
        cores=cores,
        peak_gflop_s=one,
        peak_gflop_s_all_cores=max(one, every),
        launch_us=_launch_us(cpu, target),
        memories=tuple(_memory(kernels, cpu, cores, name, size) for name, size in _levels(cpu)),
    )


def peak_gflop_s(threads: int = 1) -> float:
    """Return the peak of `threads` threads in GFLOP/s, measured now, in about 0.3 s."""
    return _peak(_kernels(), processor()[0], threads)


@cache
def _kernels() -> dict[str, Any]:
    return _built(*processor())


def _chains(cpu: CpuFeatures) -> int:
    """Return how many multiply-adds are under way at once: as many as a register tile may have."""
    return cpu.registers * 3 // 4


def _peak(kernels: Mapping[str, Any], cpu: CpuFeatures, threads: int) -> float:
    """Return GFLOP/s of independent multiply-adds in registers."""
    width = _chains(cpu) * cpu.lanes()
    out = _tensor(threads * width)
    steps = 100_000

    def lap() -> None:
        kernels["multiply_add"](_tensor(cpu.lanes()), out, threads, steps)

    return 2 * width * steps * threads / _best(lap, threads) / 1e9


def _memory(kernels: Mapping[str, Any], cpu: CpuFeatures, cores: int, name: str, size: int) -> Memory:
    """Return how fast one level is: half of it is read, or a quarter copied to another."""
    step = _STEPS * cpu.lanes()

    def read(threads: int) -> float:
        private = name in ("L1", "L2")
        each = max(1, (size // 2 if private else size // 2 // threads) // 4 // step)
        source, sums = _tensor(each * step * threads), _tensor(step * threads)
        repeats = max(1, (4 << 20) // (each * step))
        seconds = _best(lambda: kernels["read"](source, sums, threads, each, repeats), threads)
        return 4 * each * step * threads * repeats / seconds / 1e9

    def copy() -> float:
        each = max(1, size // 4 // 4 // step)
        source, other = _tensor(each * step), _tensor(each * step)
        repeats = max(1, (4 << 20) // (each * step))
        seconds = _best(lambda: kernels["copy"](source, other, each, repeats), 1)
        return 2 * 4 * each * step * repeats / seconds / 1e9

    one = read(1)
    limit = 0 if name == "DRAM" else size // 1024
    return Memory(name, limit, one, copy(), max(one, read(cores)))


def _levels(cpu: CpuFeatures) -> list[tuple[str, int]]:
    """Return the caches with their bytes, and the memory behind them with what is measured of it."""
    found = [("L1", cpu.l1_bytes), ("L2", cpu.l2_bytes)]
    last = _last_cache()
    if last > cpu.l2_bytes:
        found.append(("L3", last))
    return [*found, ("DRAM", max(_SMALLEST_MEMORY, min(8 * last, _LARGEST_MEMORY)))]


def _last_cache() -> int:
    """Return the bytes of the third-level cache, or 0 where the system names none."""
    for entry in sorted(_CACHES.glob("index*")):
        try:
            if (entry / "level").read_text().strip() == "3":
                return int((entry / "size").read_text().strip().removesuffix("K")) * 1024
        except (OSError, ValueError):
            continue
    return 0


def _launch_us(cpu: CpuFeatures, target: Any) -> float:
    """Return what one more kernel takes in a region: the difference between long and short chains."""
    few, many = 8, 40
    data = [_tensor(8)]
    regions = []
    for count in (few, many):
        lowered = lower_region(_chain(count), cpu_rules(cpu))
        built = build_region(lowered, target, lambda module: schedule_module(module, cpu))
        regions.append(vm_region(built.program, built.objects, []))
    times = [_best(partial(region.call, data, None), 1) for region in regions]
    return max(1e-3, 1e6 * (times[1] - times[0]) / (many - few))


def _chain(count: int) -> Any:
    """Return a graph of `count` tiny kernels in a row: sums are not fused with each other."""
    build = GraphBuilder("chain")
    value = build.input("x", TensorType("float32", (8,)))
    for _ in range(count):
        value = build.emit("cumsum", value, axis=0)
    return build.finish((value,))


def _best(call: Callable[[], object], threads: int) -> float:
    """Return the seconds of one call: the best of many short laps, each of as many calls as fit."""
    use_threads(threads)
    call()
    start = time.perf_counter()
    call()
    count = max(1, int(LAP_SECONDS / max(1e-7, time.perf_counter() - start)))
    laps: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(laps) < LEAST_LAPS or time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(count):
            call()
        laps.append((time.perf_counter() - start) / count)
    return min(laps)


def _tensor(elements: int) -> Any:
    data = aligned_empty((elements,), np.dtype(np.float32))
    data.fill(0.5)  # touched, so that the pages are there; and no sum of it ever is denormal
    return to_tensor(data)


def _built(cpu: CpuFeatures, target: Any) -> dict[str, Any]:
    """Return the measuring kernels as functions."""
    load_thread_pool(thread_pool_object(cpu.triple))
    functions = {"multiply_add": _multiply_add(cpu), "read": _read(cpu), "copy": _copy(cpu)}
    module = tvm.compile(tvm.IRModule({n: f.with_attr("global_symbol", n) for n, f in functions.items()}), target)
    return {name: module[name] for name in functions}


def _multiply_add(cpu: CpuFeatures) -> tirx.PrimFunc:
    """Return (factor [lanes], out, threads, steps): each chain is `sum = sum * factor + factor`, steps times."""
    lanes, chains = cpu.lanes(), _chains(cpu)
    threads, steps = var("threads"), var("steps")
    factor = buffer("factor", [lanes], "float32")
    out = buffer("out", [threads * imm(chains * lanes)], "float32")

    def work(thread: Expr) -> Stmt:
        sums = [register_buffer("sum", lanes, "float32") for _ in range(chains)]
        kept = register_buffer("kept", lanes, "float32")
        start = [
            store_vector(s, lanes, spread(tirx.const(i / chains, "float32"), lanes), 0) for i, s in enumerate(sums)
        ]
        both = load_vector(kept, lanes, 0)
        step = seq([store_vector(s, lanes, load_vector(s, lanes, 0) * both + both, 0) for s in sums])
        ends = [
            store_vector(out, lanes, load_vector(s, lanes, 0), thread * imm(chains * lanes) + imm(i * lanes))
            for i, s in enumerate(sums)
        ]
        return seq([
            *(tirx.AllocBuffer(b) for b in [*sums, kept]),
            store_vector(kept, lanes, load_vector(factor, lanes, 0), 0),
            *start, loop(steps, lambda _: step, "step"), *ends,
        ])  # fmt: skip

    body = loop(threads, work, "thread", PARALLEL)
    return tirx.PrimFunc([factor, out, threads, steps], body).with_attr("tirx.noalias", True)


def _read(cpu: CpuFeatures) -> tirx.PrimFunc:
    """Return (source, sums, threads, count, repeats): sums of `count` steps of vectors for each thread."""
    lanes, step = cpu.lanes(), _STEPS * cpu.lanes()
    threads, count, repeats = var("threads"), var("count"), var("repeats")
    source = buffer("source", [threads * count * imm(step)], "float32")
    out = buffer("sums", [threads * imm(step)], "float32")

    def work(thread: Expr) -> Stmt:
        sums = [register_buffer("sum", lanes, "float32") for _ in range(_STEPS)]
        zero = spread(tirx.const(0, "float32"), lanes)

        def add(i: Expr) -> Stmt:
            at = (thread * count + i) * imm(step)
            return seq([
                store_vector(s, lanes, load_vector(s, lanes, 0) + load_vector(source, lanes, at + imm(v * lanes)), 0)
                for v, s in enumerate(sums)
            ])  # fmt: skip

        return seq([
            *(tirx.AllocBuffer(s) for s in sums),
            *(store_vector(s, lanes, zero, 0) for s in sums),
            loop(repeats, lambda _: loop(count, add, "i"), "repeat"),
            *(
                store_vector(out, lanes, load_vector(s, lanes, 0), thread * imm(step) + imm(v * lanes))
                for v, s in enumerate(sums)
            ),
        ])  # fmt: skip

    body = loop(threads, work, "thread", PARALLEL)
    return tirx.PrimFunc([source, out, threads, count, repeats], body).with_attr("tirx.noalias", True)


def _copy(cpu: CpuFeatures) -> tirx.PrimFunc:
    """Return (source, target, count, repeats): copies of `count` steps of vectors."""
    lanes, step = cpu.lanes(), _STEPS * cpu.lanes()
    count, repeats = var("count"), var("repeats")
    source = buffer("source", [count * imm(step)], "float32")
    target = buffer("target", [count * imm(step)], "float32")

    def move(i: Expr) -> Stmt:
        at = i * imm(step)
        return seq([
            store_vector(target, lanes, load_vector(source, lanes, at + imm(v * lanes)), at + imm(v * lanes))
            for v in range(_STEPS)
        ])  # fmt: skip

    body = loop(repeats, lambda _: loop(count, move, "i"), "repeat")
    return tirx.PrimFunc([source, target, count, repeats], body).with_attr("tirx.noalias", True)
