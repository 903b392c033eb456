"""Loops in a region's own function, which Relax has no word for and its VM's code can have.

As statements, a Relax function is a list of calls whose arguments and results are the VM's registers.
What stands between two markers of a loop becomes the body of a `while`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import tirx

BEGIN = "hcomp.loop.begin"
"""Arguments: the condition of the first trip, a boolean tensor; none: there always is one."""
END = "hcomp.loop.end"
"""Arguments: the condition of a further trip; a count; as many pairs (new value, register that takes it
before the condition is read); values that are alive until here."""

_CALL = "tirx.tvm_call_packed"
_CPU = 1
"""DLPack's number of the device."""


def with_loops(function: Any) -> Any:
    """Return a function of the VM whose markers have become loops; others as they are.

    Expects functions after the passes on loops, which move what is allocated inside of one, and before
    packed calls are lowered.
    """
    body = _visit(function.body)
    return function if body is function.body else function.with_body(body)


def on_cpu(statement: Any) -> Any:
    """Return a statement with the device named, without which TVM allocates no buffers."""
    for key, value in (("device_id", 0), ("device_type", _CPU)):
        statement = tirx.AttrStmt(tirx.IntImm("int32", 0), key, tirx.IntImm("int32", value), statement)
    return statement


def _visit(statement: Any) -> Any:
    if isinstance(statement, tirx.AttrStmt):
        body = _visit(statement.body)
        if body is statement.body:
            return statement
        return tirx.AttrStmt(statement.node, statement.attr_key, statement.value, body)
    if not isinstance(statement, tirx.SeqStmt):
        return statement
    if any(_marker(s) for s in statement.seq):
        return _repeated(statement.seq)
    inner = [_visit(s) for s in statement.seq]
    return tirx.SeqStmt(inner) if any(a is not b for a, b in zip(inner, statement.seq, strict=True)) else statement


def _repeated(given: Sequence[Any]) -> Any:
    """Return a list of statements with markers as loops."""
    open_loops: list[tuple[list[Any], Any]] = []
    statements: list[Any] = []
    for statement in given:
        name, arguments = _marker(statement) or ("", [])
        if name == BEGIN:
            open_loops.append((statements, arguments[0] if arguments else None))
            statements = []
        elif name == END:
            before, first = open_loops.pop()
            count = int(arguments[1])
            pairs = arguments[2 : 2 + 2 * count]
            moves = [_move(pairs[i], pairs[i + 1]) for i in range(0, 2 * count, 2)]
            flag = tirx.decl_buffer([1], "bool", "going", scope="local", layout=None)
            enter = _set(flag, tirx.const(True, "bool") if first is None else _read(first))
            trip = tirx.SeqStmt([*statements, *moves, _set(flag, _read(arguments[0]))])
            repeated = tirx.While(tirx.BufferLoad(flag, [0]), trip)
            statements = [*before, on_cpu(tirx.SeqStmt([tirx.AllocBuffer(flag), enter, repeated]))]
        else:
            statements.append(statement)
    return tirx.SeqStmt(statements)


def _marker(statement: Any) -> tuple[str, list[Any]] | None:
    call = statement.value if isinstance(statement, tirx.Evaluate) else None
    if not isinstance(call, tvm.ir.Call) or str(call.op.name) != _CALL:
        return None
    name = getattr(call.args[0], "value", "")
    return (str(name), list(call.args[1:])) if name in (BEGIN, END) else None


def _read(condition: Any) -> Any:
    return tirx.call_intrin("bool", _CALL, "vm.builtin.read_if_cond", condition)


def _set(flag: Any, value: Any) -> Any:
    return tirx.BufferStore(flag, value, [0])


def _move(value: Any, target: Any) -> Any:
    """Return the statement that puts a value into the register that `target` reads."""
    call = "tirx.anylist_setitem_call_packed"
    return tirx.Evaluate(tirx.call_intrin("int32", call, target.args[0], target.args[1], "vm.builtin.copy", value))
