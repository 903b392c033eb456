"""The program of an artifact: steps over named values, as frozen dataclasses read from JSON.

A value has one producer: a program input, a constant or one step. `read_program` checks that, and
that no step reads a value before it is there or after it was freed, so that the runtime need not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias

from hcomp.artifact.fields import Fields, as_integer, as_text
from hcomp.artifact.texts import LEAST_BYTES
from hcomp.artifact.types import (
    MAX_RANK,
    TensorType,
    ValueType,
    item_bytes,
    read_type,
    static_shape,
)
from hcomp.dims import Dim, parse_dim, symbols_of
from hcomp.errors import ArtifactError, ParseError

EXECUTORS = ("vm", "reference", "onnxruntime")
MAX_DEPTH = 32
BRACED = r"\{([^{}]*)\}"
"""A size in the text of a need."""

Sizes: TypeAlias = Mapping[str, int]


@dataclass(frozen=True)
class Constant:
    """A value that is stored in the artifact: the member with its bytes, and their static type."""

    file: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Need:
    """A size of a region that must not be below zero, of which node, and what to say where it is.

    Sizes stand in braces in `problem`.
    """

    dim: Dim
    node: str
    problem: str


@dataclass(frozen=True)
class Launch:
    """Run one region on one device.

    `files` names the members that the executor loads ("program", "threads", "object0" ... for `vm`, "program"
    for `reference`, "model" for `onnxruntime`). `symbols` are sizes handed over as one shape
    argument: (value, axis). `needs` is checked before the region starts, `sizes` says where its
    symbols are. `fresh_outputs[i]` is False where output i may share an input's memory. `nodes` are
    the region's first nodes in the user's names, for errors.
    """

    region: str
    device: str
    executor: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: tuple[str, ...]
    types: Mapping[str, ValueType]
    symbols: tuple[tuple[str, int], ...]
    files: Mapping[str, str]
    fresh_outputs: tuple[bool, ...]
    nodes: tuple[str, ...]
    predicted_us: float | None
    free: tuple[str, ...]
    needs: tuple[Need, ...] = ()
    sizes: Mapping[str, tuple[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Copy:
    """Copy one value from one device's memory to another's."""

    value: str
    to: str
    source: str
    target: str
    predicted_us: float | None
    free: tuple[str, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The one value that is read."""
        return (self.value,)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The one value that is made."""
        return (self.to,)


@dataclass(frozen=True)
class If:
    """Run one of two programs; inputs are the condition and then the inputs of both programs."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    then_program: Program
    else_program: Program
    free: tuple[str, ...]


@dataclass(frozen=True)
class Loop:
    """Repeat a program, as ONNX's Loop does.

    `inputs` are the trip count ("" for no bound), the condition ("" for true), the carried values
    and the captured ones; `outputs` the final carried values and the stacked scan values. The
    body's inputs are the iteration number, the condition, carried and captured values; its
    outputs the next condition, the carried values and one element of each scan. `types` gives
    the scans' types, which decide what zero iterations return; `sizes` says where their symbols are,
    as far as any value has them.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    carried: int
    scans: int
    body: Program
    types: Mapping[str, ValueType]
    free: tuple[str, ...]
    sizes: Mapping[str, tuple[str, int]] = field(default_factory=dict)


Step: TypeAlias = Launch | Copy | If | Loop


@dataclass(frozen=True)
class Program:
    """Steps in order; `inputs` and `outputs` name values of this program."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Constant]
    steps: tuple[Step, ...]

    def launches(self) -> Iterable[Launch]:
        """Return all launches, those inside of `if` and `loop` included."""
        for step in self.steps:
            match step:
                case Launch():
                    yield step
                case If():
                    yield from step.then_program.launches()
                    yield from step.else_program.launches()
                case Loop():
                    yield from step.body.launches()


def read_program(fields: Fields, devices: frozenset[str], files: Mapping[str, int], depth: int = 0) -> Program:
    """Return the program that a manifest object spells; `files` gives the members' sizes.

    Raises:
        ArtifactError: a field is wrong, or a step reads a value that is not there.
    """
    if depth > MAX_DEPTH:
        raise ArtifactError(f"{fields.path}: programs are nested deeper than {MAX_DEPTH}")
    constants = {name: _read_constant(entry, files) for name, entry in fields.object("constants").children()}
    steps = tuple(_read_step(step, devices, files, depth) for step in fields.objects("steps"))
    program = Program(fields.texts("inputs"), fields.texts("outputs"), constants, steps)
    _check_values(program, fields.path)
    return program


def _read_constant(fields: Fields, files: Mapping[str, int]) -> Constant:
    file = _read_member(fields, "file", files)
    type_ = read_type(fields)
    if not isinstance(type_, TensorType):
        raise ArtifactError(f"{fields.path}: a constant must be an array, found {type_}")
    shape = static_shape(type_, fields.path)
    is_text = type_.dtype == "string"
    expected = (LEAST_BYTES if is_text else item_bytes(type_.dtype)) * prod(shape)
    if files[file] < expected or (files[file] > expected and not is_text):
        raise ArtifactError(f"{fields.path}: {type_} has {expected} bytes, the member {file} has {files[file]}")
    return Constant(file, type_.dtype, shape)


def _read_member(fields: Fields, key: str, files: Mapping[str, int]) -> str:
    name = fields.text(key)
    if name not in files:
        raise ArtifactError(f"{fields.at(key)}: the artifact has no member {name!r}")
    return name


def _read_step(fields: Fields, devices: frozenset[str], files: Mapping[str, int], depth: int) -> Step:
    match fields.text("kind"):
        case "launch":
            return _read_launch(fields, devices, files)
        case "copy":
            return Copy(
                fields.text("value"),
                fields.text("to"),
                _read_device(fields, "from", devices),
                _read_device(fields, "to_device", devices),
                fields.number("predicted_us"),
                fields.optional_texts("free"),
            )
        case "if":
            return _read_if(fields, devices, files, depth)
        case "loop":
            return _read_loop(fields, devices, files, depth)
        case kind:
            raise ArtifactError(f"{fields.at('kind')}: expected launch, copy, if or loop, found {kind!r}")


def _read_launch(fields: Fields, devices: frozenset[str], files: Mapping[str, int]) -> Launch:
    executor = fields.text("executor")
    if executor not in EXECUTORS:
        raise ArtifactError(f"{fields.at('executor')}: expected one of {', '.join(EXECUTORS)}, found {executor!r}")
    outputs = fields.texts("outputs")
    fresh = fields.items("fresh_outputs") if fields.has("fresh_outputs") else [False] * len(outputs)
    if len(fresh) != len(outputs) or not all(isinstance(flag, bool) for flag in fresh):
        raise ArtifactError(f"{fields.at('fresh_outputs')}: expected {len(outputs)} booleans")
    members = fields.object("files")
    needs, sizes = _read_needs(fields)
    return Launch(
        region=fields.text("region"),
        device=_read_device(fields, "device", devices),
        executor=executor,
        inputs=fields.texts("inputs"),
        outputs=outputs,
        constants=fields.optional_texts("constants"),
        types=_read_types(fields),
        symbols=_read_symbols(fields),
        files={key: _read_member(members, key, files) for key in members.values},
        fresh_outputs=tuple(flag is True for flag in fresh),
        nodes=fields.optional_texts("nodes"),
        predicted_us=fields.number("predicted_us"),
        free=fields.optional_texts("free"),
        needs=needs,
        sizes=sizes,
    )


def _read_needs(fields: Fields) -> tuple[tuple[Need, ...], dict[str, tuple[str, int]]]:
    """Return what must hold of a region's sizes, and where their symbols are."""
    sizes, needs = _read_sizes(fields), []
    for entry in fields.objects("needs") if fields.has("needs") else ():
        try:
            dims = [parse_dim(t) for t in (entry.text("dim"), *re.findall(BRACED, entry.text("problem")))]
        except ParseError as error:
            raise ArtifactError(f"{entry.path}: {error}") from None
        unknown = symbols_of(tuple(dims)) - sizes.keys()
        if unknown or not isinstance(dims[0], Dim):
            raise ArtifactError(f"{entry.path}: nothing gives the size {', '.join(sorted(unknown)) or dims[0]}")
        needs.append(Need(dims[0], entry.text("node"), entry.text("problem")))
    return tuple(needs), sizes


def _read_sizes(fields: Fields) -> dict[str, tuple[str, int]]:
    given = fields.optional_object("sizes").values
    return {name: _place(item, f"{fields.at('sizes')}.{name}") for name, item in given.items()}


def _read_symbols(fields: Fields) -> tuple[tuple[str, int], ...]:
    found = []
    for i, item in enumerate(fields.items("symbols") if fields.has("symbols") else ()):
        found.append(_place(item, f"{fields.at('symbols')}[{i}]"))
    return tuple(found)


def _place(item: object, where: str) -> tuple[str, int]:
    if not isinstance(item, list) or len(item) != 2:
        raise ArtifactError(f"{where}: expected a value and an axis")
    return as_text(item[0], where), as_integer(item[1], where, 0, MAX_RANK)


def _read_types(fields: Fields) -> dict[str, ValueType]:
    return {name: read_type(entry) for name, entry in fields.optional_object("types").children()}


def _read_device(fields: Fields, key: str, devices: frozenset[str]) -> str:
    name = fields.text(key)
    if name not in devices:
        raise ArtifactError(f"{fields.at(key)}: {name!r} is not among the artifact's devices")
    return name


def _read_if(fields: Fields, devices: frozenset[str], files: Mapping[str, int], depth: int) -> If:
    inputs, outputs = fields.texts("inputs"), fields.texts("outputs")
    then = read_program(fields.object("then"), devices, files, depth + 1)
    other = read_program(fields.object("else"), devices, files, depth + 1)
    for key, branch in (("then", then), ("else", other)):
        _same_count(fields.at(key), "inputs", len(branch.inputs), len(inputs) - 1)
        _same_count(fields.at(key), "outputs", len(branch.outputs), len(outputs))
    return If(inputs, outputs, then, other, fields.optional_texts("free"))


def _read_loop(fields: Fields, devices: frozenset[str], files: Mapping[str, int], depth: int) -> Loop:
    inputs, outputs = fields.texts("inputs"), fields.texts("outputs")
    carried = fields.integer("carried", 0, max(len(inputs) - 2, 0))
    scans = fields.integer("scans")
    body = read_program(fields.object("body"), devices, files, depth + 1)
    _same_count(fields.path, "outputs", len(outputs), carried + scans)
    _same_count(fields.at("body"), "inputs", len(body.inputs), len(inputs))
    _same_count(fields.at("body"), "outputs", len(body.outputs), 1 + carried + scans)
    types, free = _read_types(fields), fields.optional_texts("free")
    return Loop(inputs, outputs, carried, scans, body, types, free, _read_sizes(fields))


def _same_count(where: str, what: str, found: int, expected: int) -> None:
    if found != expected:
        raise ArtifactError(f"{where}: expected {expected} {what}, found {found}")


def _check_values(program: Program, where: str) -> None:
    known: set[str] = set()
    for name in (*program.inputs, *program.constants):
        _define(known, name, where)
    alive = set(known)
    for i, step in enumerate(program.steps):
        place = f"{where}.steps[{i}]"
        _check_step(step, program, alive, place)
        for name in step.outputs:
            if name:
                _define(known, name, place)
                alive.add(name)
        _require(step.free, alive | {""}, place)
        alive -= set(step.free)
    _require(program.outputs, alive, where)


def _check_step(step: Step, program: Program, alive: set[str], where: str) -> None:
    optional = {""} if isinstance(step, Launch | Loop) else set()
    _require(step.inputs, alive | optional, where)
    if isinstance(step, Launch | Loop):
        _require((name for name, _ in step.sizes.values()), alive, where)
    if isinstance(step, Launch):
        _require((name for name, _ in step.symbols), alive, where)
        for name in step.constants:
            if name not in program.constants:
                raise ArtifactError(f"{where}: {name!r} is no constant of this program")


def _define(known: set[str], name: str, where: str) -> None:
    if not name or name in known:
        raise ArtifactError(f"{where}: the value {name!r} is made twice or has no name")
    known.add(name)


def _require(names: Iterable[str], alive: set[str], where: str) -> None:
    for name in names:
        if name not in alive:
            raise ArtifactError(f"{where}: the value {name!r} is not there")
