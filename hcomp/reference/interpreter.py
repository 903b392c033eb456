"""Runs a whole program (see hcomp.ir.flat for its form) with the numpy functions of REFERENCE.

The constructor looks everything up once, so that a run is a loop over prepared steps. Runs share
nothing: many threads may use one Interpreter.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from hcomp.dims import Dim, DimLike, evaluate, parse_dim, symbols_of
from hcomp.dtypes import numpy_dtype
from hcomp.errors import RunError
from hcomp.reference import REFERENCE

Json: TypeAlias = Mapping[str, Any]
Extern: TypeAlias = Callable[[bytes, list[Any]], Sequence[Any]]
"""Runs a serialized ONNX model of one node on its inputs (None: absent); returns its outputs."""


@dataclass(slots=True)
class _Frame:
    """What one run of one body knows besides its values."""

    constants: Mapping[str, Any]
    sizes: dict[str, int]


Call: TypeAlias = Callable[[list[Any], _Frame], Any]
"""Runs one node; returns its only output, or a tuple of all."""


OneToOne: TypeAlias = tuple[int, Callable[[Any], Any]]
"""The place of an input, and a function of it alone."""


class _NodeError(RunError):
    """An error that already names its node."""


class Interpreter:
    """A program that is ready to run."""

    def __init__(self, program: Json, extern: Extern | None = None):
        """Prepare `program`; `extern` runs its extern nodes.

        Raises:
            KeyError, ValueError, TypeError: it is not a program.
        """
        self._constants: list[str] = list(program["constants"])
        self._symbols: list[str] = list(program["symbols"])
        self._body = _Body(program, extern)
        self._checks = [_InputCheck(v) for v in program["inputs"]]

    def run(self, values: Sequence[Any], sizes: Sequence[int] = ()) -> list[Any]:
        """Return the outputs; `values` are the inputs, then the constants, in the program's order.

        `sizes` are those of the program's `symbols`. An output may be a view of an input.

        Raises:
            RunError: the inputs do not fit, or a node failed; names it.
        """
        count = len(self._checks)
        if len(values) != count + len(self._constants) or len(sizes) != len(self._symbols):
            raise RunError(
                f"expected {count} inputs, {len(self._constants)} constants and"
                f" {len(self._symbols)} sizes, found {len(values)} values and {len(sizes)} sizes"
            )
        constants = dict(zip(self._constants, values[count:], strict=True))
        symbols = dict(zip(self._symbols, sizes, strict=True))
        return self._run(values[:count], constants, symbols)

    def functions(self) -> list[OneToOne] | None:
        """Return each output's input and the function between them, or None where outputs are made in other ways.

        The inputs' shapes are not compared with the declared ones.
        """
        body, found = self._body, []
        if self._constants or self._symbols or body.binds or len(body.steps) != len(body.outputs):
            return None
        made = {step.outputs: step for step in body.steps}
        for output in body.outputs:
            step = made.get((output,))
            if step is None or len(step.inputs) != 1 or step.inputs[0] not in body.inputs:
                return None
            found.append((body.inputs.index(step.inputs[0]), _alone(step)))
        return found

    def run_named(
        self,
        inputs: Sequence[Any],
        constants: Mapping[str, Any],
        symbols: Mapping[str, int] | None = None,
    ) -> list[Any]:
        """Return the outputs, with constants and symbols given by name; see `run`."""
        return self._run(inputs, constants, dict(symbols or {}))

    def _run(self, inputs: Sequence[Any], constants: Mapping[str, Any], sizes: dict[str, int]) -> list[Any]:
        for check, value in zip(self._checks, inputs, strict=True):
            check(value, sizes)
        return self._body.run(inputs, _Frame(constants, sizes))


class _InputCheck:
    """Compares an input's shape with the declared one; the first use of a symbol gives its size."""

    def __init__(self, declared: Json):
        self.name: str = declared["name"]
        shape = declared["shape"]
        self.shape = None if shape is None else tuple(_dim(d) for d in shape)
        self.text = None if shape is None else f"[{', '.join(str(d) for d in shape)}]"

    def __call__(self, value: Any, sizes: dict[str, int]) -> None:
        if self.shape is None or not isinstance(value, np.ndarray):
            return
        if len(self.shape) != value.ndim:
            raise self._error(value)
        for dim, size in zip(self.shape, value.shape, strict=True):
            name = _plain_symbol(dim)
            wanted = dim if name is None else sizes.setdefault(name, size)
            if isinstance(wanted, int) and wanted != size:
                raise self._error(value, name and f" with {name} = {wanted}")

    def _error(self, value: Any, where: str | None = None) -> RunError:
        return RunError(f"input {self.name!r}: expected {self.text}{where or ''}, found {list(value.shape)}")


@dataclass(frozen=True, slots=True)
class _Step:
    """One node: slots to read (-1: absent) and write, slots dead afterwards, symbols to bind."""

    label: str
    op: str
    call: Call
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    free: tuple[int, ...]
    binds: tuple[tuple[str, int, int], ...]


class _Body:
    """A program or subprogram as steps over numbered slots."""

    def __init__(self, program: Json, extern: Extern | None):
        self._slots: dict[str, int] = {}
        names = [v["name"] for v in program["inputs"]]
        self.inputs = tuple(self._slot(name) for name in names)
        read = {i for node in program["nodes"] for i in node["inputs"]} | {*program["outputs"]}
        used = [c for c in program["constants"] if c in read]
        self._constants = tuple((c, self._slot(c)) for c in used)
        self._needed = _needed_symbols(program)
        self.binds = self._bindings(program["inputs"])
        self.steps = self._prepare(program, extern)
        self.outputs = tuple(self._slots[name] for name in program["outputs"])

    def _slot(self, name: str) -> int:
        return self._slots.setdefault(name, len(self._slots))

    def _bindings(self, values: Sequence[Json]) -> tuple[tuple[str, int, int], ...]:
        """Return (symbol, position of the value, axis) for the symbols first seen in `values`."""
        found = []
        for position, value in enumerate(values):
            for axis, dim in enumerate(value["shape"] or ()):
                if dim in self._needed:
                    self._needed.discard(dim)
                    found.append((dim, position, axis))
        return tuple(found)

    def _prepare(self, program: Json, extern: Extern | None) -> tuple[_Step, ...]:
        nodes = program["nodes"]
        last = {name: i for i, node in enumerate(nodes) for name in node["inputs"] if name}
        for i, node in enumerate(nodes):
            for value in node["outputs"]:
                last.setdefault(value["name"], i)
        kept = {*program["outputs"], *program["constants"]}
        dying: dict[int, list[str]] = {}
        for name, i in last.items():
            if name not in kept:
                dying.setdefault(i, []).append(name)
        steps = []
        for i, node in enumerate(nodes):
            inputs = tuple(self._slots[name] if name else -1 for name in node["inputs"])
            outputs = tuple(self._slot(value["name"]) for value in node["outputs"])
            free = tuple(self._slots[name] for name in dying.get(i, ()))
            binds = self._bindings(node["outputs"])
            call = _prepare_node(node, extern)
            steps.append(_Step(node["label"], node["op"], call, inputs, outputs, free, binds))
        return tuple(steps)

    def run(self, inputs: Sequence[Any], frame: _Frame) -> list[Any]:
        """Return the outputs for these inputs."""
        slots: list[Any] = [None] * (len(self._slots) + 1)  # the last one stands for "absent"
        for slot, value in zip(self.inputs, inputs, strict=True):
            slots[slot] = value
        for name, slot in self._constants:
            slots[slot] = frame.constants[name]
        sizes = frame.sizes
        for symbol, position, axis in self.binds:
            sizes[symbol] = inputs[position].shape[axis]
        for step in self.steps:
            try:
                _execute(step, slots, frame)
            except _NodeError:
                raise
            except Exception as error:  # whatever numpy raises: the node's name is what helps
                raise _named(step, error) from error
        return [slots[i] for i in self.outputs]


def _execute(step: _Step, slots: list[Any], frame: _Frame) -> None:
    result = step.call([slots[i] for i in step.inputs], frame)
    if not isinstance(result, tuple):
        result = (result,)
    for slot, value in zip(step.outputs, result, strict=True):
        slots[slot] = value
    for symbol, position, axis in step.binds:
        frame.sizes[symbol] = result[position].shape[axis]
    for slot in step.free:
        slots[slot] = None


def _alone(step: _Step) -> Callable[[Any], Any]:
    """Return a node of one input and one output as a function."""
    call, frame = step.call, _Frame({}, {})

    def function(value: Any) -> Any:
        try:
            result = call([value], frame)
        except Exception as error:  # as in _Body.run
            raise _named(step, error) from error
        return result[0] if isinstance(result, tuple) else result

    return function


def _named(step: _Step, error: Exception) -> _NodeError:
    cause = str(error) if isinstance(error, RunError) else f"{type(error).__name__}: {error}"
    if isinstance(error, KeyError):
        cause = f"nothing gives the size {error.args[0]}"
    prefix = "" if cause.startswith(f"{step.op}: ") else f"{step.op}: "
    return _NodeError(f"node {step.label!r}: {prefix}{cause}")


def _prepare_node(node: Json, extern: Extern | None) -> Call:
    op = node["op"]
    if op == "if":
        return _prepare_if(node, extern)
    if op == "loop":
        return _prepare_loop(node, extern)
    if op == "extern":
        return _prepare_extern(node, extern)
    function = REFERENCE[op]
    attrs = {key: _decode(value) for key, value in node["attrs"].items()}
    symbolic = {key: value for key, value in attrs.items() if symbols_of(value)}
    fixed = partial(function, **{k: v for k, v in attrs.items() if k not in symbolic})
    if not symbolic:
        return lambda inputs, frame: fixed(*inputs)
    return lambda inputs, frame: fixed(*inputs, **_evaluated(symbolic, frame.sizes))


def _evaluated(attrs: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    return {key: _number(value, sizes) for key, value in attrs.items()}


def _number(value: Any, sizes: Mapping[str, int]) -> Any:
    if isinstance(value, Dim):
        return evaluate(value, sizes)
    if isinstance(value, tuple):
        return tuple(_number(v, sizes) for v in value)
    return value


def _prepare_if(node: Json, extern: Extern | None) -> Call:
    branches = {key: _Body(node["graphs"][key], extern) for key in ("then", "else")}

    def call(inputs: list[Any], frame: _Frame) -> tuple[Any, ...]:
        branch = branches["then" if bool(np.all(inputs[0])) else "else"]
        return tuple(branch.run(inputs[1:], _Frame(frame.constants, dict(frame.sizes))))

    return call


def _prepare_loop(node: Json, extern: Extern | None) -> Call:
    body = _Body(node["graphs"]["body"], extern)
    carried: int = node["attrs"]["carried"]
    scans = [_EmptyScan(value) for value in node["outputs"][carried:]]

    def call(inputs: list[Any], frame: _Frame) -> tuple[Any, ...]:
        trips = None if inputs[0] is None else int(inputs[0].reshape(-1)[0])
        going = inputs[1] is None or bool(np.all(inputs[1]))
        state, captures = inputs[2 : 2 + carried], inputs[2 + carried :]
        rows: list[list[Any]] = [[] for _ in scans]
        iteration = 0
        while going and (trips is None or iteration < trips):
            arguments = [np.array(iteration, np.int64), np.array(True), *state, *captures]
            # Sizes that the body binds may differ from turn to turn.
            inner = _Frame(frame.constants, dict(frame.sizes))
            condition, *rest = body.run(arguments, inner)
            going = bool(np.all(condition))
            state = rest[:carried]
            for row, value in zip(rows, rest[carried:], strict=True):
                row.append(value)
            iteration += 1
        stacked = (np.stack(row) if row else scan.array(frame.sizes) for row, scan in zip(rows, scans, strict=True))
        return (*state, *stacked)

    return call


class _EmptyScan:
    """The scan output of a loop that makes no turn: no rows; sizes that nobody knows are 0."""

    def __init__(self, value: Json):
        self.dtype = numpy_dtype(value["dtype"])
        self.dims = [_dim(d) for d in (value["shape"] or (0,))[1:]]

    def array(self, sizes: Mapping[str, int]) -> Any:
        known = [evaluate(d, sizes) if symbols_of(d) <= sizes.keys() else 0 for d in self.dims]
        return np.zeros((0, *known), self.dtype)


def _prepare_extern(node: Json, extern: Extern | None) -> Call:
    payload = base64.b64decode(node["payload"])

    def call(inputs: list[Any], frame: _Frame) -> tuple[Any, ...]:
        if extern is None:
            raise RunError("extern: nothing here runs nodes without a reference")
        return tuple(extern(payload, inputs))

    return call


def _decode(value: Any) -> Any:
    """Return an attribute as the reference functions take it, with Dims where it is symbolic."""
    if isinstance(value, list):
        return tuple(_decode(v) for v in value)
    if isinstance(value, dict):
        if "dim" in value:
            return parse_dim(value["dim"])
        return float(value["float"])
    return value


def _dim(value: int | str) -> DimLike:
    return parse_dim(value) if isinstance(value, str) else value


def _plain_symbol(dim: DimLike) -> str | None:
    """Return the symbol that `dim` is, or None."""
    text = str(dim)
    return text if isinstance(dim, Dim) and dim.symbols == {text} else None


def _needed_symbols(program: Json) -> set[str]:
    """Return the symbols that attributes mention, also in subprograms."""
    needed: set[str] = set()
    for node in program["nodes"]:
        needed |= symbols_of(tuple(_decode(v) for v in node["attrs"].values()))
        for inner in node["graphs"].values():
            needed |= _needed_symbols(inner)
        if node["op"] == "loop":
            shapes = [v["shape"] or [] for v in node["outputs"]]
            needed |= symbols_of(tuple(_dim(d) for shape in shapes for d in shape))
    return needed
