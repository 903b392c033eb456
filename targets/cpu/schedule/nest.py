"""Small constructors for loops and expressions, so that a rule reads like the loop nest it emits.

Rules that need exact control (GEMM, convolution, recurrence) write their loops with these instead of
schedule primitives: tails, register tiles and packing are then one readable function each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer

Expr = Any
Stmt = Any
Buffer = Any

SERIAL, PARALLEL, VECTORIZED, UNROLLED = 0, 1, 2, 3

GRAIN_OPERATIONS = 1 << 20
"""Below this many operations a second thread costs more than it brings."""

_MANY = 4


def imm(value: int) -> Expr:
    """Return an int64 constant."""
    return tirx.IntImm("int64", value)


def imm32(value: int) -> Expr:
    """Return an int32 constant, as shuffles take."""
    return tirx.IntImm("int32", value)


def var(name: str) -> Expr:
    """Return a fresh int64 variable."""
    return tirx.Var(name, "int64")


def as_int(value: Expr) -> int | None:
    """Return the value of a constant, or None for a symbolic one."""
    if isinstance(value, int):
        return value
    if isinstance(value, tirx.IntImm):
        return int(value.value)
    return None


def loop(extent: Expr, body: Callable[[Expr], Stmt], name: str, kind: int = SERIAL) -> Stmt:
    """Return `for name in range(extent): body(name)`; a loop of extent 1 is its body."""
    if as_int(extent) == 1:
        return body(imm(0))
    index = var(name)
    extent = imm(extent) if isinstance(extent, int) else extent
    return tirx.For(index, imm(0), extent, kind, body(index))


class Block(list[Stmt]):
    """Statements in order, and `ends`: what comes after all of them, whatever is appended later."""

    def __init__(self, statements: Iterable[Stmt] = ()) -> None:
        super().__init__(statements)
        self.ends: list[Stmt] = []


def seq(statements: Sequence[Stmt]) -> Stmt:
    """Return the statements one after the other, nested sequences flattened, the ends of a `Block` last."""
    flat: list[Stmt] = []
    ends = statements.ends if isinstance(statements, Block) else []
    for statement in (*statements, *ends):
        flat.extend(statement.seq if isinstance(statement, tirx.SeqStmt) else [statement])
    return flat[0] if len(flat) == 1 else tirx.SeqStmt(flat)


def buffer(name: str, shape: Sequence[Expr], dtype: str, scope: str = "global") -> Buffer:
    """Return a new buffer; the caller emits `tirx.AllocBuffer` for it."""
    dims = [imm(d) if isinstance(d, int) else d for d in shape]
    return tirx.decl_buffer(dims, dtype, name=name, scope=scope, data_alignment=64)


def register_buffer(name: str, elements: int, dtype: str) -> Buffer:
    """Return a buffer that LLVM keeps in vector registers.

    Two conditions: every index is a constant, and it is small and in scope `global`, because TVM
    puts those on the stack and everything else on the heap, from where LLVM may not lift it.
    """
    return buffer(name, [elements], dtype)


def let(name: str, value: Expr, out: list[Stmt]) -> Expr:
    """Bind `value` to a variable by a statement appended to `out`; constants stay constants."""
    if as_int(value) is not None or isinstance(value, tvm.ir.Var):
        return value
    bound = var(name)
    out.append(tirx.Bind(bound, value))
    return bound


def opaque_let(name: str, value: Expr, out: list[Stmt]) -> Expr:
    """Bind a symbolic size so that TVM's simplifier sees one name, not the expression.

    TVM puts bound pure integers back into every index that uses them and then analyses those for
    seconds. A value read from a buffer stays a name; LLVM removes the buffer.
    """
    value = simple(value)
    if as_int(value) is not None:
        return value
    cell = buffer(name, [1], "int64")
    bound = var(name)
    out.extend([tirx.AllocBuffer(cell), store(cell, value, 0), tirx.Bind(bound, load(cell, 0))])
    return bound


def load(source: Buffer, *indices: Expr) -> Expr:
    """Return `source[indices]`."""
    return tirx.BufferLoad(source, [imm(i) if isinstance(i, int) else i for i in indices])


def store(target: Buffer, value: Expr, *indices: Expr) -> Stmt:
    """Return the statement `target[indices] = value`."""
    return tirx.BufferStore(target, value, [imm(i) if isinstance(i, int) else i for i in indices])


def load_vector(source: Buffer, lanes: int, *indices: Expr) -> Expr:
    """Return `lanes` contiguous elements of `source` from `indices` on."""
    *outer, last = (imm(i) if isinstance(i, int) else i for i in indices)
    return tirx.BufferLoad(source, [*outer, _ramp(last, lanes)])


def store_vector(target: Buffer, lanes: int, value: Expr, *indices: Expr) -> Stmt:
    """Return the store of a vector of `lanes` elements at `indices`."""
    *outer, last = (imm(i) if isinstance(i, int) else i for i in indices)
    return tirx.BufferStore(target, value, [*outer, _ramp(last, lanes)])


def spread(scalar: Expr, lanes: int) -> Expr:
    """Return a vector whose elements are all `scalar`."""
    return scalar if lanes == 1 else tirx.Broadcast(scalar, lanes)


def _ramp(base: Expr, lanes: int) -> Expr:
    return base if lanes == 1 else tirx.Ramp(base, imm(1), lanes)


def flat_view(source: Buffer, out: list[Stmt]) -> Buffer:
    """Return a one-dimensional view of a contiguous buffer, declared by a statement in `out`."""
    shape = [simple(product(list(source.shape)))]
    view = tirx.decl_buffer(shape, str(source.dtype), name="flat", data_alignment=64)
    out.append(tirx.DeclBuffer(view, data=source.data))
    return view


def scratch(name: str, elements: Expr, dtype: str, out: Block) -> Buffer:
    """Allocate memory for the statements of `out` and return a view of it.

    Accesses go through a view, because TVM then does not analyse which part of the memory is used
    (seconds for symbolic sizes). Nor does it see then that the memory is in use, and would give it to
    another buffer of the kernel: so one element is written before everything else and after it.
    """
    memory = buffer(name, [elements], dtype)
    touch = store(memory, tirx.const(0, dtype), 0)
    out.extend([tirx.AllocBuffer(memory), touch])
    out.ends.append(touch)
    return flat_view(memory, out)


def product(values: Sequence[Expr]) -> Expr:
    """Return the product of extents; 1 for none."""
    return reduce(lambda a, b: a * b, values, imm(1))


def ceil_div(a: Expr, b: int) -> Expr:
    """Return `a / b` rounded up, for non-negative `a`."""
    known = as_int(a)
    if known is not None:
        return imm(-(-known // b))
    return tirx.floordiv(a + imm(b - 1), imm(b))


def simple(value: Expr) -> Expr:
    """Return the value simplified; a constant where it is one."""
    return value if as_int(value) is not None else Analyzer().simplify(value)


def unravel(flat: Expr, extents: Sequence[Expr]) -> list[Expr]:
    """Return the indices of the row-major position `flat` in a box of `extents`."""
    wide = [k for k, extent in enumerate(extents) if as_int(extent) != 1]
    indices: list[Expr] = [imm(0)] * len(extents)
    rest = flat
    for k in reversed(wide):
        if k == wide[0]:
            indices[k] = rest
        else:
            indices[k] = tirx.floormod(rest, extents[k])
            rest = tirx.floordiv(rest, extents[k])
    return indices


def overlapped(number: Expr, width: int, total: int, out: list[Stmt]) -> Expr:
    """Return where part `number` of `width` of a row of `total` starts; the last one may overlap the one before."""
    at = number * imm(width)
    return let("at", simple(at if total % width == 0 else tirx.min(at, imm(total - width))), out)


def vector_loop(extent: Expr, lanes: int, body: Callable[[Expr], Stmt]) -> Stmt:
    """Return `for i in range(extent): body(i)` by vectors, where iterations do not depend.

    A static extent that is no multiple of `lanes` ends with a vector that overlaps the one before (each
    iteration only stores, so doing some twice is harmless). A symbolic one is left to LLVM.
    """
    known = as_int(extent)
    if known is None:
        return loop(extent, body, "i")

    def vector(base: Expr, width: int) -> Stmt:
        return loop(imm(width), lambda lane: body(base + lane), "lane", VECTORIZED)

    if known <= lanes:
        return vector(imm(0), known)
    whole = loop(imm(known // lanes), lambda i: vector(i * imm(lanes), lanes), "i")
    return whole if known % lanes == 0 else seq([whole, vector(imm(known - lanes), lanes)])


def task_loops(extents: Sequence[Expr], body: Callable[[list[Expr]], Stmt], *, parallel: bool) -> Stmt:
    """Return loops over a box of tasks, the outermost useful one parallel.

    Static extents are merged into one loop; a symbolic one starts a new loop, because dividing by a
    symbolic extent is slow, and TVM's simplifier may take such a divisor for zero.
    """
    groups: list[list[int]] = []
    for k, extent in enumerate(extents):
        if groups and as_int(extent) is not None:
            groups[-1].append(k)
        else:
            groups.append([k])
    sizes = [simple(product([extents[k] for k in group])) for group in groups]
    wide = [g for g, size in enumerate(sizes) if as_int(size) != 1]
    enough = [g for g in wide if (as_int(sizes[g]) or _MANY) >= _MANY]
    chosen = (enough or wide or [0])[0] if parallel else -1

    def level(g: int, indices: list[Expr]) -> Stmt:
        if g == len(groups):
            return body(indices)

        def inside(position: Expr) -> Stmt:
            out: list[Stmt] = []
            found = unravel(position, [extents[k] for k in groups[g]])
            bound = [let("at", index, out) for index in found]
            return seq([*out, level(g + 1, [*indices, *bound])])

        return loop(sizes[g], inside, "task", PARALLEL if g == chosen else SERIAL)

    return level(0, [])


def substitute(node: Any, values: Mapping[Any, Expr]) -> Any:
    """Return `node` with each variable of `values` replaced."""

    def visit(v: Any) -> Any:
        return values.get(v, v)

    return tvm_ffi.structural_map(node, (tvm.ir.Var, visit))


def used_vars(node: Any, among: Sequence[Any]) -> set[Any]:
    """Return which of the variables `among` occur in `node`."""
    wanted = set(among)
    found: set[Any] = set()

    def visit(v: Any) -> None:
        if v in wanted:
            found.add(v)

    tvm_ffi.structural_walk(node, (tvm.ir.Var, visit))
    return found


def loads(node: Any) -> list[Any]:
    """Return every buffer load in `node`, in evaluation order."""
    found: list[Any] = []
    tvm_ffi.structural_walk(node, (tvm.ir.TensorLoad, found.append))
    return found


def replace_loads(node: Any, source: Buffer, value: Callable[[Any], Expr]) -> Any:
    """Return `node` with every load of `source` replaced by `value(load)`."""

    def visit(item: Any) -> Any:
        return value(item) if item.source.same_as(source) else item

    return tvm_ffi.structural_map(node, (tvm.ir.TensorLoad, visit))


def same(a: Any, b: Any) -> bool:
    """Return whether two expressions are equal in structure (free variables by identity)."""
    return bool(tvm_ffi.structural_equal(a, b))
