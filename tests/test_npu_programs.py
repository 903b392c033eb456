"""Programs written by hand: values, races, orders, files and text; all on real tiles with edges."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hcomp.errors import ArtifactError
from hcomp.targets.npu.device.hazards import check_races, find_races, legal_order
from hcomp.targets.npu.device.isa import OPS
from hcomp.targets.npu.device.program import Program, check_program, read_program, write_program
from hcomp.targets.npu.device.text import parse_instructions, print_program
from hcomp.targets.npu.device.values import State, run_program
from tests.npu_programs import BF16, CASES, Case


@cache
def case(name: str) -> Case:
    return CASES[name]()


def ordered(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return floats of 16 bits as integers in their order, a step apart."""
    bits = values.view(np.uint16).astype(np.int64)
    return np.where(bits & 0x8000, 0x8000 - bits, bits)


@pytest.mark.parametrize("name", CASES)
def test_a_program_computes_what_the_specification_says(name: str) -> None:
    made = case(name)
    found = run_program(made.program, made.inputs)
    assert found.keys() == made.expected.keys()
    for output, expected in made.expected.items():
        values = found[output].view(expected.dtype) if expected.dtype == BF16 else found[output]
        assert values.dtype == expected.dtype
        assert values.shape == expected.shape
        if made.steps:
            assert np.abs(ordered(values) - ordered(expected)).max() <= made.steps
            assert (values == expected).mean() > 0.9
        else:
            np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("name", CASES)
def test_every_legal_order_gives_the_same(name: str) -> None:
    made = case(name)
    check_races(made.program)
    expected = run_program(made.program, made.inputs)
    for seed in range(4):
        state = State(made.program, made.inputs)
        state.run(legal_order(made.program, seed))
        for output, values in state.outputs().items():
            np.testing.assert_array_equal(values, expected[output])


@pytest.mark.parametrize("name", CASES)
def test_a_program_reads_back_from_its_file_and_its_text(name: str) -> None:
    program = case(name).program
    data = write_program(program)
    back = read_program(data)
    assert (back.name, back.machine, back.buffers) == (program.name, program.machine, program.buffers)
    assert list(back.instructions) == list(program.instructions)
    assert write_program(back) == data
    for constant, values in program.constants.items():
        np.testing.assert_array_equal(back.constants[constant], values)
    assert parse_instructions(print_program(program)) == list(program.instructions)


@pytest.mark.parametrize("name", CASES)
def test_writing_a_program_twice_gives_the_same_bytes(name: str) -> None:
    assert write_program(CASES[name]().program) == write_program(case(name).program)


def with_wait(program: Program, index: int, wait: tuple[int, ...]) -> Program:
    changed = list(program.instructions)
    changed[index] = changed[index]._replace(wait=wait)
    return Program(program.name, program.machine, program.buffers, changed, program.constants)


@pytest.mark.parametrize("name", CASES)
def test_no_token_is_there_for_nothing_and_none_is_missing(name: str) -> None:
    """Each token that is taken away leaves a race, unless it came from memory in lines of 64 bytes."""
    program = case(name).program
    assert find_races(program) == []
    taken = raced = 0
    for index, one in enumerate(program.instructions):
        for engine, count in enumerate(one.wait):
            if count:
                taken += 1
                wait = tuple(0 if e == engine else n for e, n in enumerate(one.wait))
                raced += bool(find_races(with_wait(program, index, wait), limit=1))
    assert taken > 0
    assert raced >= 0.9 * taken


def test_a_token_that_is_one_too_early_is_a_race() -> None:
    program = case("gemm_requantize").program
    index = next(i for i, one in enumerate(program.instructions) if one.op == "gemm" and one.wait[0] > 1)
    wait = program.instructions[index].wait
    (race, *_) = find_races(with_wait(program, index, (wait[0] - 1, *wait[1:])))
    assert race.kind == "RAW"
    assert race.second == index
    assert "nothing orders instruction" in race.describe(program)
    with pytest.raises(ArtifactError, match="RAW in act"):
        check_races(with_wait(program, index, (wait[0] - 1, *wait[1:])))


def test_without_tokens_values_are_wrong_in_some_order() -> None:
    made = case("gemm_reusing_places")
    program = made.program
    bare = [one._replace(wait=(0,) * 5) for one in program.instructions]
    loose = Program(program.name, program.machine, program.buffers, bare, program.constants)
    wrong = 0
    for seed in range(5):
        state = State(loose, made.inputs)
        state.run(legal_order(loose, seed))
        wrong += not np.array_equal(state.outputs()["y"], made.expected["y"])
    assert wrong == 5
    assert {race.kind for race in find_races(loose, limit=500)} == {"RAW", "WAR", "WAW"}


def test_a_wait_for_what_comes_later_is_refused() -> None:
    program = case("gemm_requantize").program
    with pytest.raises(ArtifactError, match="waits for 3 of VE, of which 0 come before it"):
        check_program(with_wait(program, 0, (0, 0, 0, 0, 3)))


def test_the_order_of_a_program_lets_loads_run_ahead() -> None:
    """Written tile by tile, each tile would load only after the one before is stored: the port goes by the program."""
    made = case("gemm_reusing_places")
    written = made.program
    names = [one.op for one in written.instructions]
    # The loads of a second tile come before the first store.
    assert names[: names.index("store")].count("loadw") > 3
    for engine in range(5):
        waits = [one.wait for one in written.instructions if OPS[one.op].engine == engine]
        for earlier, later in itertools.pairwise(waits):
            assert all(b == 0 or b > a for a, b in zip(earlier, later, strict=True))
