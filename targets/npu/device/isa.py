"""The instruction set as data: engines, memories, types, and one table row an operation.

An instruction is a plain tuple. Its operands are views: a place, a type, a byte address and a stride in
elements for each size of the instruction; 0 repeats. README.md of the NPU says what each operation computes;
`check` says which instructions are valid, `encoding` and `text` are their two written forms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

ENGINES = ("LD", "LW", "ST", "PE", "VE")
"""In-order engines: two for loads (LW so that weights do not wait behind activations), stores, the array, vectors."""
SPACES = ("mem", "act", "wgt", "acc", "imm")
"""Device memory, the three scratchpads, and the instruction itself."""
ITEM_BYTES = {"int8": 1, "uint8": 1, "int32": 4, "float32": 4, "float16": 2, "bfloat16": 2}
DTYPES = tuple(ITEM_BYTES)
INTEGERS = ("int8", "uint8", "int32")
FLOATS = ("float32", "float16", "bfloat16")
ALL = DTYPES

MAX_SIZES = 7
MAX_STRIDES = 6
MAX_IMM = 4
NO_WAIT = (0,) * len(ENGINES)

Form: TypeAlias = Literal["move", "gemm", "map", "select", "reduce", "row", "rope", "compress", "expand"]


class View(NamedTuple):
    """An operand: where it starts, its type, and a stride in elements for each size."""

    space: str
    dtype: str
    address: int
    strides: tuple[int, ...]


class Imm(NamedTuple):
    """A source operand that is one number in the instruction."""

    dtype: str
    value: float | int


Source: TypeAlias = "View | Imm | None"


class Instruction(NamedTuple):
    """One instruction.

    Attributes:
        op: a key of OPS.
        sizes: the iteration space; of a gemm (m0, m1, m2, k0, k1, k2, n).
        d, a, b, c: destination and sources, as many as the operation has.
        imm: the operation's immediate numbers, in the order of its row in OPS.
        before, after: of a load, elements of padding before and after the loaded box, by dimension.
        wait: for each engine, how many of its instructions must have retired before this one starts.
    """

    op: str
    sizes: tuple[int, ...]
    d: View
    a: Source = None
    b: Source = None
    c: Source = None
    imm: tuple[float | int, ...] = ()
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    wait: tuple[int, ...] = NO_WAIT


@dataclass(frozen=True)
class Op:
    """A row of the table.

    Attributes:
        code: its number in the binary form.
        engine: an index into ENGINES.
        form: which fields the instruction has and how its sizes are read.
        sources: the names of its sources among "abc".
        d, a, b, c: the types that each operand may have.
        imm: (name, "i" or "f") of each immediate number.
        passes: how often the vector unit goes over each element.
        same: operands that must have the destination's type, so that bits pass unchanged.
    """

    name: str
    code: int
    engine: int
    form: Form
    sources: str
    d: tuple[str, ...] = ALL
    a: tuple[str, ...] = ALL
    b: tuple[str, ...] = ALL
    c: tuple[str, ...] = ALL
    imm: tuple[tuple[str, str], ...] = ()
    passes: int = 1
    same: str = ""


LD, LW, ST, PE, VE = range(5)
_FILL = (("fill", "f"),)
_RANGE = (("zero", "i"), ("low", "i"), ("high", "i"))
_REDUCE = (("axes", "i"), ("scale", "f"))
_BLOCK = (("bits", "i"), ("block", "i"))
_GEMM = (("accumulate", "i"), ("flow", "i"), ("a_zero", "i"), ("b_zero", "i"))
_GEMM_TYPES = ("int8", "uint8", "float16", "bfloat16")
_INT = INTEGERS
_I32, _F32, _U8 = ("int32",), ("float32",), ("uint8",)


def _unary(name: str, code: int, passes: int = 1, *imm: str) -> Op:
    return Op(name, code, VE, "map", "a", imm=tuple((i, "f") for i in imm), passes=passes)


def _binary(name: str, code: int, passes: int = 1) -> Op:
    return Op(name, code, VE, "map", "ab", passes=passes)


def _integer(name: str, code: int, sources: str = "ab") -> Op:
    return Op(name, code, VE, "map", sources, d=_INT, a=_INT, b=_INT)


def _reduce(name: str, code: int) -> Op:
    return Op(name, code, VE, "reduce", "a", imm=_REDUCE)


_ROWS = (
    Op("load", 1, LD, "move", "a", imm=_FILL, same="a"),
    Op("loadw", 2, LW, "move", "a", imm=_FILL, same="a"),
    Op("store", 3, ST, "move", "a", same="a"),
    Op("gemm", 8, PE, "gemm", "ab", d=("int32", "float32"), a=_GEMM_TYPES, b=_GEMM_TYPES, imm=_GEMM),
    Op("copy", 16, VE, "map", "a", same="a"),
    Op("select", 17, VE, "select", "abc", same="ab"),
    # On float32: sources are converted to it, and the result to the destination's type.
    _unary("cast", 20),
    _unary("neg", 21),
    _unary("abs", 22),
    _unary("square", 23),
    _unary("sqrt", 24, 4),
    _unary("rsqrt", 25, 5),
    _unary("reciprocal", 26, 4),
    _unary("exp", 27, 4),
    _unary("log", 28, 5),
    _unary("tanh", 29, 6),
    _unary("erf", 30, 6),
    _unary("sigmoid", 31, 6),
    _unary("gelu", 32, 8),
    _unary("gelu_tanh", 33, 9),
    _unary("silu", 34, 7),
    _unary("relu", 35),
    _unary("leaky_relu", 36, 1, "slope"),
    _unary("clip", 37, 1, "low", "high"),
    _unary("floor", 38),
    _unary("ceil", 39),
    _unary("round", 40),
    _unary("trunc", 41),
    _unary("sign", 42),
    _unary("hard_sigmoid", 43, 2, "slope", "offset"),
    _binary("add", 64),
    _binary("sub", 65),
    _binary("mul", 66),
    _binary("div", 67, 4),
    _binary("min", 68),
    _binary("max", 69),
    _binary("eq", 70),
    _binary("ne", 71),
    _binary("lt", 72),
    _binary("le", 73),
    _binary("gt", 74),
    _binary("ge", 75),
    Op("mul_add", 76, VE, "map", "abc"),
    # On int32.
    _integer("icast", 96, "a"),
    _integer("iadd", 97),
    _integer("isub", 98),
    _integer("imul", 99),
    _integer("imin", 100),
    _integer("imax", 101),
    _integer("iand", 102),
    _integer("ior", 103),
    _integer("ixor", 104),
    _integer("ieq", 105),
    _integer("ilt", 106),
    _integer("ile", 107),
    # Between numbers and levels.
    Op("quantize", 112, VE, "map", "abc", d=_INT, b=_F32, c=_INT, passes=4),
    Op("dequantize", 113, VE, "map", "abc", a=_INT, b=_F32, c=_INT),
    Op("requantize", 114, VE, "map", "ab", d=_INT, a=_I32, b=_F32, imm=_RANGE, passes=2),
    Op("requantize_fixed", 115, VE, "map", "abc", d=_INT, a=_I32, b=_I32, c=_I32, imm=_RANGE, passes=2),
    _reduce("sum", 128),
    _reduce("sum_square", 129),
    _reduce("amax", 130),
    _reduce("amin", 131),
    _reduce("abs_max", 132),
    Op("dot", 133, VE, "reduce", "ab", imm=_REDUCE, passes=2),
    Op("idot", 134, VE, "reduce", "ab", d=_INT, a=_INT, b=_INT, imm=_REDUCE[:1], passes=2),
    # Along the last size.
    Op("softmax", 144, VE, "row", "ab", imm=(("scale", "f"),), passes=11),
    Op("layer_norm", 145, VE, "row", "abc", imm=(("epsilon", "f"),), passes=6),
    Op("rms_norm", 146, VE, "row", "ab", imm=(("epsilon", "f"),), passes=4),
    Op("rope", 147, VE, "rope", "abc", imm=(("interleaved", "i"),), passes=3),
    Op("compress", 152, VE, "compress", "a", d=_U8, a=FLOATS, imm=_BLOCK, passes=4),
    Op("expand", 153, VE, "expand", "a", d=FLOATS, a=_U8, imm=_BLOCK, passes=2),
)

OPS: dict[str, Op] = {row.name: row for row in _ROWS}
BY_CODE: dict[int, Op] = {row.code: row for row in _ROWS}
WS, OS = 0, 1
"""Values of a gemm's `flow`."""


def gemm_type(dtype: str) -> str:
    """Return the name under which the machine lists the array's rate for operands of a type."""
    return "int8" if dtype == "uint8" else dtype


def block_bytes(bits: int, block: int) -> int:
    """Return the bytes of one compressed block: a float16 scale and `block` numbers of `bits`."""
    return 2 + block * bits // 8


def packed_bytes(columns: int, bits: int, block: int) -> int:
    """Return the bytes of a compressed row of `columns` numbers; the last block is filled up."""
    return -(-columns // block) * block_bytes(bits, block)


def strides_of(instruction: Instruction, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the (sizes, strides) that an operand's view has in an instruction.

    They differ from the instruction's own where the operation says so: a gemm's operands have the sizes
    of their matrices, a load's source has no padding, compressed rows have bytes.
    """
    view: View = getattr(instruction, name)
    sizes = instruction.sizes
    form = OPS[instruction.op].form
    if form == "gemm":
        m0, m1, m2, k0, k1, k2, n = sizes
        if name == "a":
            return (m0, m1, m2, k0, k1, k2), view.strides
        return (m0 * m1 * m2, n) if name == "d" else (k0 * k1 * k2, n), view.strides
    if form == "move" and name == "a" and instruction.before:
        inner = tuple(n - b - f for n, b, f in zip(sizes, instruction.before, instruction.after, strict=True))
        return inner, view.strides
    if form == "reduce" and name == "d":
        kept = len(sizes) - int(instruction.imm[0])
        return sizes[:kept], view.strides[:kept]
    if form == "rope" and name in "bc":
        return (*sizes[:-1], sizes[-1] // 2), view.strides
    if (form == "compress" and name == "d") or (form == "expand" and name == "a"):
        bits, block = (int(i) for i in instruction.imm)
        return (*sizes[:-1], packed_bytes(sizes[-1], bits, block)), view.strides
    return sizes, view.strides
