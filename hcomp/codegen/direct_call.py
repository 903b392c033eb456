"""A region that is one call of native code, as a function that needs no VM.

What the VM does around one call (a frame, checks, memory, tensor objects) takes longer than the kernels of a
small model. `DIRECT` takes the inputs, the region's constants, those that the module itself holds (`CONSTANTS`
returns them), and memory for the outputs; its caller has checked all of them. The VM's program has the
region as well: it serves every other case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import tvm
from tvm import relax, tirx

from hcomp.codegen.interpreted import ENTRY
from hcomp.codegen.kernel_calls import ARENA, descriptor, is_kernel, kinds_of, own_size
from hcomp.codegen.vm_loops import on_cpu

Expr: TypeAlias = Any

DIRECT = "__direct"
CONSTANTS = "constants"
"""The Relax function that returns the constants of the module that `DIRECT` takes."""


def with_direct_call(module: Any) -> Any:
    """Return a module, its runs of kernels as drivers, with `DIRECT` where its entry is a single call."""
    entry = module[ENTRY]
    bindings = [b for block in entry.body.blocks for b in block.bindings]
    if not bindings or not is_kernel(call := bindings[0].value) or not all(_is_plain(p.ty) for p in entry.params):
        return module
    kinds = kinds_of(call)
    # A kernel's own attributes have no such key.
    has_arena = bool((module[call.args[0]].attrs or {}).get(ARENA, False))
    order = _results(bindings, entry.body.body, single=len(kinds) == 1)
    if sorted(order) != list(range(len(kinds) - has_arena)):
        return module
    held = list(dict.fromkeys(a for a in call.args[1].fields if isinstance(a, tvm.ir.GenericConst)))
    builder = relax.BlockBuilder(module)
    builder.add_func(_direct(call, entry.params, held, order, kinds[-1] if has_arena else None), DIRECT)
    module = builder.get()
    module[CONSTANTS] = relax.Function([], relax.Tuple(held), is_pure=True).with_attr("global_symbol", CONSTANTS)
    return module


def _is_plain(kind: Any) -> bool:
    """Say whether a parameter is a tensor whose dimensions are numbers or symbols: each binds what it is."""
    if not isinstance(kind, relax.TensorType) or not isinstance(kind.shape, relax.ShapeExpr):
        return False
    return all(isinstance(dim, tirx.IntImm | tirx.Var) for dim in kind.shape.values)


def _results(bindings: Sequence[Any], result: Expr, *, single: bool) -> list[int]:
    """Return which of the first binding's results the outputs are; -1 is something else."""
    call = bindings[0].var
    places: dict[Any, int] = {call: 0} if single else {}
    for binding in bindings[1:]:
        value = binding.value
        is_item = isinstance(value, relax.TupleGetItem) and value.tuple_value.same_as(call)
        places[binding.var] = value.index if is_item else places.get(value, -1)
    return [places.get(v, -1) for v in (result.fields if isinstance(result, relax.Tuple) else [result])]


def _direct(call: Expr, given: Sequence[Any], held: Sequence[Any], order: Sequence[int], arena: Any) -> Any:
    """Return `DIRECT`, which calls what `call` does."""
    sizes: dict[Any, Any] = {}

    def buffer(name: str, kind: Any) -> Any:
        shape = [own_size(d, sizes) for d in kind.shape.values]
        return tirx.decl_buffer(shape, str(kind.dtype), name, layout=None)

    def described(memory: Any) -> Any:
        return descriptor(memory.data, memory.shape, memory.dtype)

    buffers = {v: buffer(f"in{i}", v.ty) for i, v in enumerate([*given, *held])}
    outputs = [tirx.Var(f"out{i}", "handle") for i in range(len(order))]
    arguments = [described(buffers[a]) if a in buffers else own_size(a, sizes) for a in call.args[1].fields]
    arguments += [outputs[order.index(i)] for i in range(len(order))]
    body: list[Any] = []
    if arena is not None:
        memory = buffer("arena", arena)
        body.append(tirx.AllocBuffer(memory))
        arguments.append(described(memory))
    called = tirx.call_intrin("int32", "tirx.tvm_call_cpacked", str(call.args[0].name_hint), *arguments)
    body.append(tirx.Evaluate(called))
    function = tirx.PrimFunc([*buffers.values(), *outputs], on_cpu(tirx.SeqStmt(body) if len(body) > 1 else body[0]))
    return function.with_attrs({"global_symbol": DIRECT, "tirx.is_scheduled": True})
