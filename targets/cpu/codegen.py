"""A region as machine code for this processor. Importing this module loads TVM."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from hcomp.codegen.kernel_list import KERNELS
from hcomp.codegen.kernels import BuiltRegion, build_region
from hcomp.codegen.machine_code import INTERPRETED, PROGRAM
from hcomp.codegen.relax_module import lower_region
from hcomp.ir.graph import Graph
from hcomp.passes.channels_last import channels_last
from hcomp.passes.fuse_attention import fuse_attention
from hcomp.passes.integer_products import integer_products
from hcomp.stopwatch import Stopwatch
from hcomp.targets.base import EmittedRegion, Options
from hcomp.targets.cpu.choices import Choices
from hcomp.targets.cpu.features import CpuFeatures
from hcomp.targets.cpu.heavy.bytes import is_faster_in_bytes
from hcomp.targets.cpu.heavy.conv_int8 import takes_conv_int8
from hcomp.targets.cpu.lowering import cpu_rules
from hcomp.targets.cpu.schedule import schedule_module
from hcomp.targets.cpu.thread_pool import thread_pool_object


@cache
def processor() -> tuple[CpuFeatures, Any]:
    """Return this machine's processor and TVM's target for it, which is slow to make."""
    features = CpuFeatures.host()
    return features, features.tvm_target()


def processor_key() -> str:
    """Return what choices are kept under: what they depend on of the processor."""
    cpu = processor()[0]
    return f"{cpu.mcpu} vectors {cpu.vector_bytes} x {cpu.registers} L1 {cpu.l1_bytes} L2 {cpu.l2_bytes}"


def build(graph: Graph, name: str, choices: Choices | None = None) -> BuiltRegion:
    """Build a region's kernels for this machine, by measured blocks where `choices` has them.

    Raises:
        CodegenError: a node has no lowering or TVM refuses the module.
    """
    features, target = processor()
    clock = Stopwatch()
    with clock.stage("lower"):
        lowered = lower_region(laid_out(graph, features), cpu_rules(features, choices))
    return build_region(lowered, target, lambda module: schedule_module(module, features), name, clock)


def laid_out(graph: Graph, cpu: CpuFeatures) -> Graph:
    """Return a region with products of bytes, channels last and with attention fused, the body of a loop too."""

    def own_passes(part: Graph) -> Graph:
        part = integer_products(part, lambda node, weight: is_faster_in_bytes(node, weight, cpu))
        return fuse_attention(channels_last(part, lambda weight, attrs: takes_conv_int8(weight, attrs, cpu)))

    nodes = tuple(
        replace(node, graphs={name: own_passes(body) for name, body in node.graphs.items()}) if node.graphs else node
        for node in graph.nodes
    )
    return own_passes(graph if nodes == graph.nodes else replace(graph, nodes=nodes))


def requirements() -> dict[str, Any]:
    """Return what the kernels need of the machine that runs them: triple and instruction sets."""
    import tvm

    features, _ = processor()
    found = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
    return {
        "triple": features.triple,
        "features": sorted(str(name) for name, on in found.items() if bool(on)),
    }


def emit(graph: Graph, name: str, options: Options) -> EmittedRegion:
    """Return the region `graph` as object files and a program file of the Relax VM.

    The option "tuning", a Tuning, has measured blocks.
    """
    tuning = options.get("tuning")
    choices = None if tuning is None else Choices(tuning.choices(processor_key()))
    built = build(graph, name, choices)
    objects = {f"object{number}": data for number, data in enumerate(built.objects)}
    roles = {"program": PROGRAM, "interpreted": INTERPRETED, "kernels": KERNELS}
    objects["threads"] = thread_pool_object(processor()[0].triple)
    roles |= {role: f"{role}.o" for role in objects}
    notes = () if built.fused else ("its operators are not fused: TVM refused its symbolic shapes",)
    return EmittedRegion(
        executor="vm",
        files={
            PROGRAM: built.program,
            INTERPRETED: built.interpreted,
            KERNELS: built.listing,
            **{f"{role}.o": data for role, data in objects.items()},
        },
        roles=roles,
        constants=built.constants,
        fresh_outputs=built.fresh_outputs,
        symbols=built.symbols,
        notes=notes,
        seconds=built.seconds,
    )
