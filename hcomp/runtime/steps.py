"""A program as closures over numbered slots, made once when a session is loaded.

Every run has a list of slots of its own, so that runs can overlap; a step reads and writes slots
by number. Nothing is looked up by name while a program runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hcomp.artifact.program import Copy, If, Launch, Loop, Program, Step
from hcomp.errors import ArtifactError
from hcomp.runtime.control import if_step, loop_step
from hcomp.runtime.launch import launch_step
from hcomp.runtime.resources import Resources
from hcomp.runtime.sizes import Check, size_check
from hcomp.runtime.values import copied, to_host

Action = Callable[[list[object]], None]


@dataclass(frozen=True)
class Code:
    """A program ready to run.

    `blank` are the slots after the inputs at the start of a run; `fresh[i]` says that output i
    is memory that no input, constant or other value shares; `kernel_inputs[i]` that generated code
    reads input i; `made[i]` are the slots that action i fills.
    """

    actions: tuple[Action, ...]
    blank: tuple[object, ...]
    outputs: tuple[int, ...]
    fresh: tuple[bool, ...]
    kernel_inputs: tuple[bool, ...]
    made: tuple[tuple[int, ...], ...]

    def run(self, inputs: Sequence[object]) -> list[object]:
        """Return the outputs for the inputs, both in the program's order."""
        slots = [*inputs, *self.blank]
        for action in self.actions:
            action(slots)
        return [slots[i] for i in self.outputs]


class _Numbering:
    """Slot numbers of a program's values: the inputs, the slot of "nothing", then the rest."""

    def __init__(self, program: Program) -> None:
        self.count = len(program.inputs) + 1
        self.of = {name: i for i, name in enumerate(program.inputs)}
        self.of[""] = len(program.inputs)

    def add(self, name: str) -> int:
        if name == "":  # an output that nobody reads
            name = f"\0{self.count}"
        self.of[name] = self.count
        self.count += 1
        return self.of[name]

    def all(self, names: Sequence[str]) -> list[int]:
        return [self.of[name] for name in names]

    def places(self, sizes: Mapping[str, tuple[str, int]]) -> dict[str, tuple[int, int]]:
        return {name: (self.of[value], axis) for name, (value, axis) in sizes.items()}


def compile_program(program: Program, resources: Resources) -> Code:
    """Return the program as closures, with its regions loaded.

    Raises:
        ArtifactError: a region cannot be loaded.
    """
    numbering = _Numbering(program)
    constants = {numbering.add(name): resources.constant(spec) for name, spec in program.constants.items()}
    fresh: dict[str, bool] = {}
    actions: list[Action] = []
    made: list[tuple[int, ...]] = []
    for step in program.steps:
        inputs = numbering.all(step.inputs)
        symbols = [(numbering.of[name], axis) for name, axis in step.symbols] if isinstance(step, Launch) else []
        outputs = [numbering.add(name) for name in step.outputs]
        sizes = numbering.places(step.sizes) if isinstance(step, Loop) else {}
        action, flags = _compile_step(step, program, resources, inputs, symbols, outputs, sizes)
        if isinstance(step, Launch):
            action = _after_check(size_check(step.needs, numbering.places(step.sizes)), action)
        fresh.update(zip(step.outputs, flags, strict=True))
        made.append(tuple(outputs))
        actions.append(_then_free(action, numbering.all(step.free)))
    first = len(program.inputs)
    return Code(
        actions=tuple(actions),
        blank=tuple(constants.get(i) for i in range(first, numbering.count)),
        outputs=tuple(numbering.all(program.outputs)),
        fresh=tuple(fresh.get(name, False) for name in program.outputs),
        kernel_inputs=tuple(_is_read_by_kernels(program, name) for name in program.inputs),
        made=tuple(made),
    )


def _compile_step(
    step: Step,
    program: Program,
    resources: Resources,
    inputs: list[int],
    symbols: list[tuple[int, int]],
    outputs: list[int],
    sizes: Mapping[str, tuple[int, int]],
) -> tuple[Action, Sequence[bool]]:
    """Return the step's closure and which of its outputs are fresh memory."""
    match step:
        case Launch():
            constants = [program.constants[name] for name in step.constants]
            return launch_step(step, resources, constants, inputs, symbols, outputs), step.fresh_outputs
        case Copy():
            return _copy_step(inputs[0], outputs[0]), (True,)
        case If():
            branches = (
                compile_program(step.then_program, resources),
                compile_program(step.else_program, resources),
            )
            flags = [all(pair) for pair in zip(*(branch.fresh for branch in branches), strict=True)]
            return if_step(branches[0].run, branches[1].run, inputs, outputs), flags
        case Loop():
            body = compile_program(step.body, resources)
            # Zero iterations hand the carried inputs on.
            return loop_step(step, body.run, inputs, outputs, sizes), [False] * step.carried + [True] * step.scans
    raise ArtifactError(f"unknown step {step}")


def _copy_step(source: int, target: int) -> Action:
    """Return a step that copies a value between two memories: both are the host's, as arrays."""

    def copy(slots: list[object]) -> None:
        slots[target] = to_host(copied(slots[source]))

    return copy


def _after_check(check: Check | None, action: Action) -> Action:
    """Return the action, before which the sizes are checked."""
    if check is None:
        return action

    def act(slots: list[object]) -> None:
        check(slots)
        action(slots)

    return act


def _then_free(action: Action, dead: list[int]) -> Action:
    """Return the action, after which the values in `dead` are let go."""
    if not dead:
        return action

    def act(slots: list[object]) -> None:
        action(slots)
        for i in dead:
            slots[i] = None

    return act


def _is_read_by_kernels(program: Program, name: str) -> bool:
    """Say whether generated code reads the input `name`, be it inside of a branch or a loop."""
    return any(
        _reads(step, place) for step in program.steps for place, given in enumerate(step.inputs) if given == name
    )


def _reads(step: Step, place: int) -> bool:
    """Say whether generated code reads the step's input number `place`."""
    match step:
        case Launch():
            return step.executor == "vm"
        case If():  # the condition is the first, and no input of the branches
            branches = (step.then_program, step.else_program) if place else ()
            return any(_is_read_by_kernels(branch, branch.inputs[place - 1]) for branch in branches)
        case Loop():  # the body has its own number and condition
            return place > 1 and _is_read_by_kernels(step.body, step.body.inputs[place])
    return False
