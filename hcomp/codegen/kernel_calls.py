"""Kernels called by one function of native code instead of one by one by the VM.

A call through the VM costs its builtins: memory and a tensor object for each result, shapes of symbolic
sizes, and the end of each. Here a run of kernel calls becomes one function, a driver. What stays inside
of it lives in an arena, at places planned when compiling, and is a descriptor on the stack; the VM makes
the arena and what leaves the run. Views inside are further descriptors of the same memory.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import relax, tirx

from hcomp.codegen.interpreted import INTERPRETED
from hcomp.codegen.vm_loops import on_cpu

Expr: TypeAlias = Any
Shape: TypeAlias = Sequence[Any]

DRIVER = "__calls"
"""The names of drivers begin so."""
ARENA = "hcomp.arena"
"""The attribute of a driver whose last argument is memory for what stays inside."""
ALIGNMENT = 64
FEWEST = 2
"""As many kernels at least: a driver saves nothing for one."""

_ARRAY_DATA = 1
"""The number of a DLTensor's data pointer among the fields that `tvm_struct_get` reads."""


def with_drivers(module: Any) -> Any:
    """Return a module, before memory is planned, with runs of kernel calls as drivers; the interpreter has none."""
    builder = relax.BlockBuilder(module)
    changed = {}
    for name, function in module.functions.items():
        if isinstance(function, relax.Function) and not name.name_hint.startswith(INTERPRETED):
            changed[name] = _function(builder, str(name.name_hint), function)
    module = builder.get()
    for name, function in changed.items():
        module.update_func(name, function)
    return module


def _function(builder: Any, name: str, function: Any) -> Any:
    """Return a function that calls drivers, which go to the builder's module."""
    bindings = [b for block in function.body.blocks for b in block.bindings]
    reads = {b.var: _vars(b.value) for b in bindings}
    total = Counter(v for read in reads.values() for v in read)
    total.update(_vars(function.body.body))
    blocks, count = [], 0
    for block in function.body.blocks:
        if not isinstance(block, relax.DataflowBlock):
            blocks.append(block)
            continue
        made: list[Any] = []
        for run in _runs(block.bindings):
            inside = Counter(v for b in run for v in reads[b.var])
            outside = {b.var for b in run if total[b.var] > inside[b.var]}
            calls = sum(is_kernel(b.value) for b in run)
            driver = _Run(run, outside).driver(builder, f"{DRIVER}_{name}_{count}") if calls >= FEWEST else None
            count += driver is not None
            made += run if driver is None else driver
        blocks.append(relax.DataflowBlock(made))
    body = relax.SeqExpr(blocks, function.body.body)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)


def _runs(bindings: Sequence[Any]) -> list[list[Any]]:
    """Return the bindings as runs that a driver can take, and single ones that it cannot."""
    runs: list[list[Any]] = [[]]
    inside: set[Any] = set()
    for binding in bindings:
        value = binding.value
        is_item = isinstance(value, relax.TupleGetItem) and value.tuple_value in inside
        if is_item or is_kernel(value) or _is_view(value):
            runs[-1].append(binding)
            inside.add(binding.var)
        else:
            runs += [[binding], []]
            inside = set()
    return [run for run in runs if run]


def _op(value: Expr) -> str:
    return str(getattr(value.op, "name", "")) if isinstance(value, relax.Call) else ""


def is_kernel(value: Expr) -> bool:
    """Say whether a value is a kernel's call; with sizes behind its arguments it is not one that a driver can make."""
    plain = _op(value) == "relax.call_tir" and len(value.args) == 2
    return plain and all(isinstance(k.shape, relax.ShapeExpr) for k in kinds_of(value))


def _is_view(value: Expr) -> bool:
    return _op(value) == "relax.reshape" and isinstance(value.args[1], relax.ShapeExpr)


def kinds_of(call: Expr) -> list[Any]:
    """Return the types of what a kernel makes."""
    (kind,) = call.ty_args
    return list(kind.fields) if isinstance(kind, relax.TupleType) else [kind]


def _vars(node: Any) -> set[Any]:
    found: set[Any] = set()
    tvm_ffi.structural_walk(node, (relax.Var, found.add))
    return found


@dataclass(eq=False)
class _Slot:
    """A part of the arena: `factor` times the product of `sizes`, in bytes, from `offset` on."""

    sizes: tuple[Any, ...]
    factor: int
    offset: Any
    free: bool = False

    def bytes(self) -> Any:
        total = tirx.IntImm("int64", self.factor)
        for size in self.sizes:
            total = total * size
        return total


@dataclass(eq=False)
class _Tensor:
    """What a kernel of the run makes: `var` names it outside, `handle` is the driver's result.

    It is made by the call number `first`, and `last` is the last one that reads it.
    """

    type: Any
    first: int
    last: int
    var: Any = None
    handle: Any = None
    slot: _Slot | None = None


@dataclass(frozen=True)
class _Value:
    """What a variable of the run is: a tensor of the run or an expression from outside, or a view of it."""

    source: Any
    shape: Shape | None = None


@dataclass
class _Run:
    """One run of bindings on its way to a driver; `outside` are its variables that others read."""

    bindings: list[Any]
    outside: set[Any]
    values: dict[Any, _Value] = field(default_factory=dict)
    made: dict[Any, list[_Tensor]] = field(default_factory=dict)
    given: dict[Any, Any] = field(default_factory=dict)
    sizes: dict[Any, Any] = field(default_factory=dict)
    slots: list[_Slot] = field(default_factory=list)

    def driver(self, builder: Any, name: str) -> list[Any] | None:
        """Add the driver to the builder's module and return the bindings that call it.

        None where it cannot be: results that only leave as one tuple, or that nobody reads.
        """
        if any(isinstance(var.ty, relax.TupleType) and var in self.outside for var in (b.var for b in self.bindings)):
            return None
        self._read()
        leaving = self._leaving()
        if not leaving:
            return None
        arena = tirx.decl_buffer([tirx.Var("bytes", "int64")], "uint8", "arena", layout=None)
        calls = self._calls(arena.data)
        body = tirx.SeqStmt([*self._places(), *calls])
        results = [t.handle for t in leaving] + ([arena] if self.slots else [])
        parameters = [*self.given.values(), *self.sizes.values(), *results]
        function = tirx.PrimFunc(parameters, on_cpu(body))
        attributes = {"global_symbol": name, "tirx.is_scheduled": True, "tirx.noalias": True, ARENA: bool(self.slots)}
        function = function.with_attrs(attributes)
        kinds = [t.type for t in leaving]
        if self.slots:
            room = [slot.bytes() + tirx.IntImm("int64", ALIGNMENT) for slot in self.slots]
            kinds.append(relax.TensorType([sum(room[1:], room[0])], "uint8"))
        arguments = relax.Tuple([*self.given, *self.sizes])
        call = relax.call_tir(builder.add_func(function, name), arguments, kinds if len(kinds) > 1 else kinds[0])
        return self._bindings(builder, call, leaving, kinds)

    def _read(self) -> None:
        """Note what each variable is, and which calls read the tensors of the run."""
        number = 0
        for binding in self.bindings:
            value, var = binding.value, binding.var
            if isinstance(value, relax.TupleGetItem):
                self.values[var] = _Value(self.made[value.tuple_value][value.index])
            elif _is_view(value):
                self.values[var] = _Value(self._value(value.args[0]).source, value.args[1].values)
            else:
                for argument in value.args[1].fields:
                    if isinstance(source := self._value(argument).source, _Tensor):
                        source.last = number
                self.made[var] = [_Tensor(kind, number, number) for kind in kinds_of(value)]
                if not isinstance(var.ty, relax.TupleType):
                    self.values[var] = _Value(self.made[var][0])
                number += 1

    def _value(self, expr: Expr) -> _Value:
        return self.values.get(expr) or _Value(expr)

    def _leaving(self) -> list[_Tensor]:
        """Return the tensors that are read outside, themselves or views of them, and name them."""
        found: dict[_Tensor, None] = {}
        for var, value in self.values.items():
            if var in self.outside and isinstance(tensor := value.source, _Tensor):
                found[tensor] = None
                if value.shape is None and tensor.var is None:
                    tensor.var = var
        for i, tensor in enumerate(found):
            tensor.handle = tirx.Var(f"out{i}", "handle")
            if tensor.var is None:
                tensor.var = relax.DataflowVar(f"whole{i}", tensor.type)
        return list(found)

    def _size(self, dim: Any) -> Any:
        """Return a size over the driver's own variables."""
        return own_size(dim, self.sizes)

    def _calls(self, arena: Any) -> list[Any]:
        """Return the driver's calls; a slot is free again when the last call that reads it is done."""
        calls: list[Any] = []
        ending: dict[int, list[_Slot]] = defaultdict(list)
        for binding in self.bindings:
            if not is_kernel(binding.value):
                continue
            tensors = self.made[binding.var]
            for tensor in tensors:
                if tensor.handle is None:
                    tensor.slot = self._slot(tensor.type)
                    ending[max(tensor.first, tensor.last)].append(tensor.slot)
            arguments = [self._argument(self._value(a), arena) for a in binding.value.args[1].fields]
            arguments += [self._argument(_Value(t), arena) for t in tensors]
            callee = str(binding.value.args[0].name_hint)
            call = tirx.call_intrin("int32", "tirx.tvm_call_cpacked", callee, *arguments)
            for slot in ending[len(calls)]:
                slot.free = True
            calls.append(tirx.Evaluate(call))
        return calls

    def _argument(self, value: _Value, arena: Any) -> Any:
        """Return what a kernel is given for a value: a size, a tensor's handle, or a descriptor on the stack."""
        source, shape = value.source, value.shape
        if isinstance(source, _Tensor) and source.slot is not None:
            data = tirx.call_intrin("handle", "tirx.handle_add_byte_offset", arena, source.slot.offset)
            return self._descriptor(data, source.type.shape.values if shape is None else shape, source.type.dtype)
        if isinstance(source, _Tensor):
            handle, kind = source.handle, source.type
        elif isinstance(source.ty, relax.TensorType):
            handle, kind = self.given.setdefault(source, tirx.Var(f"in{len(self.given)}", "handle")), source.ty
        else:
            return self._size(source)
        if shape is None:
            return handle
        data = tirx.call_intrin("handle", "tirx.tvm_struct_get", handle, 0, _ARRAY_DATA)
        return self._descriptor(data, shape, kind.dtype)

    def _descriptor(self, data: Any, shape: Shape, dtype: str) -> Any:
        return descriptor(data, [self._size(d) for d in shape], dtype)

    def _slot(self, kind: Any) -> _Slot:
        """Return a part of the arena for a tensor: a free one of the same symbols, or a new one."""
        sizes: list[Any] = []
        factor = max(1, tvm_ffi.dtype(str(kind.dtype)).itemsize)
        for dim in kind.shape.values:
            more, number = _factors(dim)
            sizes += more
            factor *= number
        key = tuple(sorted(sizes, key=str))
        same = [s for s in self.slots if s.free and _are_equal(s.sizes, key)]
        if not same:
            self.slots.append(_Slot(key, factor, tirx.Var(f"at{len(self.slots)}", "int64")))
            return self.slots[-1]
        enough = [s for s in same if s.factor >= factor]
        found = min(enough, key=lambda s: s.factor) if enough else max(same, key=lambda s: s.factor)
        found.factor, found.free = max(found.factor, factor), False
        return found

    def _places(self) -> list[Any]:
        """Return the statements that say where the slots start."""
        found, at = [], tirx.IntImm("int64", 0)
        unit = tirx.IntImm("int64", ALIGNMENT)
        for slot in self.slots:
            found.append(tirx.Bind(slot.offset, at))
            whole = tirx.floordiv(self._size(slot.bytes()) + tirx.IntImm("int64", ALIGNMENT - 1), unit) * unit
            at = slot.offset + whole
        return found

    def _bindings(self, builder: Any, call: Expr, leaving: Sequence[_Tensor], kinds: Sequence[Any]) -> list[Any]:
        """Return the call and what makes of its result the variables that are read elsewhere."""
        if len(kinds) == 1:
            made = [relax.VarBinding(leaving[0].var, call)]
        else:
            whole = relax.DataflowVar("made", relax.TupleType(kinds))
            made = [relax.VarBinding(whole, call)]
            made += [relax.VarBinding(t.var, relax.TupleGetItem(whole, i)) for i, t in enumerate(leaving)]
        for var, value in self.values.items():
            source = value.source.var if isinstance(value.source, _Tensor) else value.source
            if var in self.outside and not var.same_as(source):
                if value.shape is not None:
                    source = builder.normalize(relax.op.reshape(source, relax.ShapeExpr(value.shape)))
                made.append(relax.VarBinding(var, source))
        return made


def own_size(dim: Any, sizes: dict[Any, Any]) -> Any:
    """Return a size of Relax over variables of a function's own, `sizes`, which gets those that are new."""
    return tvm_ffi.structural_map(dim, (tvm.ir.Var, lambda v: sizes.setdefault(v, tirx.Var(v.name, "int64"))))


def descriptor(data: Any, shape: Shape, dtype: Any) -> Any:
    """Return a tensor's descriptor on the stack."""
    sizes = tirx.call_intrin("handle", "tirx.tvm_stack_make_shape", *shape)
    return tirx.tvm_stack_make_array(data, sizes, 0, len(shape), str(dtype), 0)


def _are_equal(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and all(map(tvm_ffi.structural_equal, a, b))


def _factors(dim: Any) -> tuple[list[Any], int]:
    """Return a size as symbolic factors and a number."""
    if isinstance(dim, tirx.IntImm):
        return [], int(dim.value)
    if isinstance(dim, tvm.ir.prim.expr.Mul):
        (a, x), (b, y) = _factors(dim.a), _factors(dim.b)
        return [*a, *b], x * y
    return [dim], 1
