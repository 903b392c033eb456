"""The pool that runs parallel loops: every part once, errors told, callers apart, nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import StringImm

from hcomp.errors import CodegenError
from hcomp.runtime.threads import load_thread_pool, use_threads
from hcomp.targets.cpu.codegen import processor
from hcomp.targets.cpu.thread_pool import SYSTEMS, thread_pool_object

ROOT = Path(__file__).parent.parent
FAILS = 1000
"""The counter that a part of the kernel refuses."""


@cache
def kernel() -> Any:
    """Return count(numbers): adds 1 to each number in parallel, but not to FAILS."""
    cpu, target = processor()
    # The kernel is a small one, and is to be shared all the same but for one test.
    little = int(os.environ.get("LITTLE", "0"))
    load_thread_pool(thread_pool_object(cpu.triple, little))
    size, i = tirx.Var("n", "int64"), tirx.Var("i", "int64")
    numbers = tirx.decl_buffer([size], "int64", "numbers")
    at = tirx.BufferLoad(numbers, [i])
    # Condition first: see kernel.checked.
    refusal = tirx.AssertStmt(tirx.NE(at, tirx.const(FAILS, "int64")), StringImm("ValueError"), [StringImm("full")])
    step = tirx.SeqStmt([refusal, tirx.BufferStore(numbers, at + tirx.const(1, "int64"), [i])])
    loop = tirx.For(i, tirx.const(0, "int64"), size, tirx.ForKind.PARALLEL, step)
    made = tirx.PrimFunc([numbers], loop).with_attr("global_symbol", "count")
    return tvm.compile(tvm.IRModule({"count": made}), target)["count"]


def counted(numbers: np.ndarray, launches: int = 1) -> np.ndarray:
    shared = tvm_ffi.from_dlpack(numbers)
    for _ in range(launches):
        kernel()(shared)
    return numbers


@pytest.mark.parametrize("threads", [1, 2, 3, 8, 300])
def test_every_part_runs_once(threads: int) -> None:
    use_threads(threads)
    for size in (1, 2, 7, 33, 1000):
        assert (counted(np.zeros(size, np.int64), 50) == 50).all(), size


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_error_of_a_part_is_the_callers(threads: int) -> None:
    use_threads(threads)
    for place in (0, 250, 499):
        numbers = np.zeros(500, np.int64)
        numbers[place] = FAILS
        with pytest.raises(Exception, match="full"):
            counted(numbers)
        assert (counted(np.zeros(500, np.int64), 3) == 3).all()


def test_callers_at_the_same_time() -> None:
    """More than there are pools, with numbers of threads of their own."""
    wrong: list[int] = []

    def work(number: int) -> None:
        use_threads(1 + number % 4)
        if not (counted(np.zeros(100 + number, np.int64), 100) == 100).all():
            wrong.append(number)

    kernel()
    callers = [threading.Thread(target=work, args=(number,)) for number in range(24)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def test_idle_workers_sleep() -> None:
    use_threads(4)
    counted(np.zeros(1000, np.int64), 10)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1


COMMON = """
import os
import numpy as np
from hcomp.runtime.threads import use_threads
from tests.test_threads import counted, kernel

def tasks():
    return len(os.listdir("/proc/self/task"))

kernel()
counted(np.zeros(9, np.int64))
before = tasks()
"""


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("use_threads(1); counted(np.zeros(1000, np.int64), 9); print(tasks() - before)", "0"),
        ("use_threads(3); counted(np.zeros(1000, np.int64), 9); print(tasks() - before)", "2"),
        (
            "use_threads(3)\n"
            "counted(np.zeros(1000, np.int64), 9)\n"
            "child = os.fork()\n"
            "right = (counted(np.zeros(1000, np.int64), 9) == 9).all()\n"
            "if not child:\n"
            "    os._exit(7 if right and tasks() == 3 else 1)\n"
            "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), right)",
            "7 True",
        ),
    ],
    ids=["one is single", "workers end with the process", "fork"],
)
def test_threads_of_a_process(code: str, said: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", COMMON + code], capture_output=True, text=True, env=environment, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, said), done.stderr


ONCE = """
use_threads(3)
assert (counted(np.zeros(1000, np.int64), 900) == 900).all()
numbers = np.zeros(1000, np.int64)
numbers[700] = 1000
try:
    counted(numbers)
except Exception as error:
    print("full" in str(error), end=" ")
kernel_switches = lambda: sum(
    int(line.split()[1]) for task in os.listdir("/proc/self/task")
    for line in open(f"/proc/self/task/{task}/status") if line.startswith("voluntary_ctxt")
)
before = kernel_switches()
counted(np.zeros(1000, np.int64), 900)
few = kernel_switches() - before < 200
print(few, (counted(np.zeros(3_000_000, np.int64), 3) == 3).all(), tasks() - before_tasks)
"""


def test_a_loop_that_is_short_is_not_shared() -> None:
    """Until its sizes are large: what it took the last time decides."""
    code = COMMON.replace("before = tasks()", "before_tasks = tasks()") + ONCE
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LITTLE": "1000000"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["True", "True", "True", "2"]), done.stderr


def test_there_is_a_pool_for_every_architecture() -> None:
    for name in SYSTEMS:
        assert thread_pool_object(f"{name}-unknown-linux-gnu")[:4] == b"\x7fELF"
    with pytest.raises(CodegenError, match="expected a processor of x86_64, aarch64, found the target triple riscv64"):
        thread_pool_object("riscv64-unknown-linux-gnu")
