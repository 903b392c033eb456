"""`hcomp npu`: runs and prints program files; whatever is wrong with one is a line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hcomp.targets.npu.device.program import Program, write_program
from hcomp.targets.npu.device.text import parse_instructions, print_program
from tests.cli_run import run
from tests.npu_programs import CASES

ROOT = Path(__file__).resolve().parents[1]
MADE = CASES["gemm_gelu"]()
INTEGERS = CASES["gemm_requantize"]()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a folder with two programs and their inputs."""
    for name, made in (("float", MADE), ("int", INTEGERS)):
        (tmp_path / f"{name}.npu").write_bytes(write_program(made.program))
    np.save(tmp_path / "x.npy", INTEGERS.inputs["x"])
    return tmp_path


def test_run_gives_the_outputs_and_the_time(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--input", f"x={files / 'x.npy'}", "-o", files / "out", "--trace", files / "t.json"]
    out, err = run(capsys, "npu", "run", files / "int.npu", *arguments)
    assert err == ""
    assert out.startswith("y: uint8[70, 45], mean ")
    assert "gemm-requantize on edge (full): " in out
    np.testing.assert_array_equal(np.load(files / "out" / "y.npy"), INTEGERS.expected["y"])
    assert len(json.loads((files / "t.json").read_text())["traceEvents"]) == len(INTEGERS.program.instructions) + 5


def test_run_as_json_in_another_state(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = json.loads(run(capsys, "npu", "run", files / "float.npu", "--random", "--json")[0])
    low = json.loads(run(capsys, "npu", "run", files / "float.npu", "--only-time", "--json", "--state", "low")[0])
    assert full["outputs"]["y"]["dtype"] == "float32"
    assert low["outputs"] == {}
    assert low["cycles"] < full["cycles"]
    assert low["microseconds"] > full["microseconds"]


def test_disasm_prints_what_reads_back(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "npu", "disasm", files / "float.npu")
    assert out == print_program(MADE.program)
    assert parse_instructions(out) == list(MADE.program.instructions)
    run(capsys, "npu", "disasm", files / "float.npu", "-o", files / "p.txt")
    assert (files / "p.txt").read_text() == out


def changed(program: Program, index: int, **fields: object) -> bytes:
    instructions = list(program.instructions)
    instructions[index] = instructions[index]._replace(**fields)  # type: ignore[arg-type]
    return write_program(Program(program.name, program.machine, program.buffers, instructions, program.constants))


def test_bad_programs_are_a_line(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = INTEGERS.program
    data = (files / "int.npu").read_bytes()
    gemm = next(i for i, one in enumerate(program.instructions) if one.op == "gemm")
    load = program.instructions[0]
    bad = {
        "empty": (b"", "not a program of the NPU"),
        "foreign": (b"PK\x03\x04" * 100, "not a program of the NPU"),
        "truncated": (data[: len(data) // 2], "sha256 does not fit"),
        "outside": (changed(program, 0, d=load.d._replace(address=1 << 40)), "are not inside act of 262144 bytes"),
        "later": (changed(program, 0, wait=(0, 0, 0, 9, 0)), "waits for 9 of PE, of which 0 come before it"),
        "racing": (changed(program, gemm, wait=(0,) * 5), "RAW in "),
    }
    for name, (content, message) in bad.items():
        (files / "bad.npu").write_bytes(content)
        out, err = run(capsys, "npu", "run", files / "bad.npu", "--random", status=2)
        assert message in err, name
        assert err.count("\n") == 1
        assert out == ""
        if name != "racing":
            _, again = run(capsys, "npu", "disasm", files / "bad.npu", status=2)
            assert again == err


def test_bad_options_are_a_line(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = files / "int.npu"
    for arguments, message in (
        ([], "the input 'x' of uint8[70, 100] is missing"),
        (["--input", "x"], "an input is NAME=FILE.npy"),
        (["--input", f"z={files / 'x.npy'}", "--random"], "no input is called 'z': there are x"),
        (["--random", "--state", "turbo"], "has no power state 'turbo': there are full, low"),
        (["--random", "--only-time"], "--only-time executes nothing"),
        (["--random", "--trace", program], "this would overwrite"),
        (["--random", "--trace", "/no/such/folder/t"], "cannot be written"),
        (["--random", "-o", ""], "expected the name of a folder"),
    ):
        _, err = run(capsys, "npu", "run", program, *arguments, status=2)
        assert message in err
        assert err.count("\n") == 1
    for action in ("run", "disasm"):
        _, err = run(capsys, "npu", action, files / "none.npu", status=2)
        assert "none.npu: cannot be read: No such file" in err
        _, err = run(capsys, "npu", action, files, status=2)
        assert "expected a regular file, found a folder" in err


def test_the_run_side_needs_numpy_alone(files: Path) -> None:
    """A program runs where there is no compiler and no onnx."""
    code = (
        "import sys, numpy\n"
        "from hcomp.targets.npu.device import hazards, program, report, values\n"
        "made = program.read_program(open(sys.argv[1], 'rb').read())\n"
        "hazards.check_races(made)\n"
        "report.time_program(made).to_json()\n"
        "values.run_program(made, {'x': numpy.load(sys.argv[2])})\n"
        "print(*sys.modules)"
    )
    command = [sys.executable, "-c", code, str(files / "int.npu"), str(files / "x.npy")]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert not set(done.stdout.split()) & {"tvm", "tvm_ffi", "onnx", "onnxruntime", "torch", "ml_dtypes"}
