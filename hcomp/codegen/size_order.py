"""The order of the sizes that a fused kernel takes: FuseOps collects them in a hash table of addresses.

It changes from run to run, and with it the artifact's bytes; sorted by name it does not.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.tirx.buffer import is_buffer_var


def with_sorted_sizes(module: Any) -> Any:
    """Return a fused module whose TIR functions take their sizes in the order of names."""
    orders = {}
    for name, function in list(module.functions.items()):
        if isinstance(function, tirx.PrimFunc) and (order := _order(function)) is not None:
            orders[str(name.name_hint)] = order
            parameters = [function.params[i] for i in order]
            module.update_func(name, tirx.PrimFunc(parameters, function.body, function.ret_type, function.attrs))
    if not orders:
        return module
    for name, function in list(module.functions.items()):
        if isinstance(function, relax.Function):
            module.update_func(name, _Calls(module, orders).visit_expr(function))
    return module


def _order(function: Any) -> list[int] | None:
    """Return the parameters' new places, sizes by name among those of sizes, or None if they are sorted."""
    places = [i for i, parameter in enumerate(function.params) if not is_buffer_var(parameter)]
    wanted = sorted(places, key=lambda i: str(function.params[i].name))
    if wanted == places:
        return None
    order = list(range(len(function.params)))
    for place, source in zip(places, wanted, strict=True):
        order[place] = source
    return order


@mutator
class _Calls(PyExprMutator):  # type: ignore[misc]  # TVM has no types
    """Gives the arguments of each call the order that its function has now."""

    def __init__(self, module: Any, orders: dict[str, list[int]]) -> None:
        super().__init__(module)
        self.orders = orders

    def visit_call_(self, call: Any) -> Any:
        called = str(getattr(call.op, "name", "")) == "relax.call_tir"
        order = self.orders.get(str(call.args[0].name_hint)) if called else None
        if order is None:
            return call
        fields = call.args[1].fields
        arguments = relax.Tuple([fields[order[i]] for i in range(len(fields))])
        return relax.Call(call.op, [call.args[0], arguments], call.attrs, call.ty_args, call.span)
