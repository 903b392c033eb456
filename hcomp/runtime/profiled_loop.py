"""Compiled loops in a profile: the VM's interpreter has no loops, so the trips are called from here.

Its program calls REPEAT with the functions of a trip and of growing buffers, as `hcomp.codegen.loop` says.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import tvm_ffi

from hcomp.runtime.library import tvm_function
from hcomp.runtime.vm import elements

REPEAT = "hcomp.loop.repeat"


@cache
def provide_repeat() -> None:
    """Make REPEAT known, before a program that calls it is loaded."""
    tvm_ffi.register_global_func(REPEAT, _repeat, override=True)


def _repeat(context: Any, trip: Any, grow: Any, *given: Any) -> list[Any]:
    call = tvm_function("vm.builtin.invoke_closure")
    *counts, going, number = given[:6]
    rest = iter(given[6:])
    states, fixed, buffers, weights = ([next(rest) for _ in range(count)] for count in counts)
    sizes = list(rest)
    while _truth(going):
        result = call(context, trip, number, *states, *fixed, *buffers, *weights)
        number, going, fits, *changed = elements(result)
        states, buffers = changed[: len(states)], changed[len(states) :]
        if buffers and _truth(going) and not _truth(fits):
            buffers = elements(call(context, grow, *buffers, *sizes))
    return [number, *states, *buffers]


def _truth(value: Any) -> bool:
    return bool(np.from_dlpack(value))
