"""Choosing a device for every node.

Objective here: the predicted latency of one request. Every device of the program is costed alone
(nodes that it refuses run on the host, copies counted), the fastest becomes the default, and pins
then move nodes away from it. A plan without pins is therefore never slower than the best single device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hcomp.errors import PartitionError
from hcomp.ir.graph import Graph, Node
from hcomp.ir.ops import CONTROL as CONTROL_OPS
from hcomp.partition.pins import Pin, pin_of
from hcomp.partition.plan import CONTROL, EXTERN, REFERENCE, Alternative, Choice
from hcomp.targets.base import Target

HOST_DEVICE = "cpu"
"""The device whose memory and processor the runtime itself uses."""


def choose(
    graph: Graph,
    targets: Mapping[str, Target],
    default: str,
    pins: Sequence[Pin],
    sizes: Mapping[str, int],
) -> tuple[Choice, ...]:
    """Return the choice for each node of `graph` (bodies are planned apart), in order."""
    return tuple(_choice(graph, node, targets, default, pins, sizes) for node in graph.nodes)


def _choice(
    graph: Graph,
    node: Node,
    targets: Mapping[str, Target],
    default: str,
    pins: Sequence[Pin],
    sizes: Mapping[str, int],
) -> Choice:
    if node.op in CONTROL_OPS:
        return Choice(HOST_DEVICE, CONTROL, "control flow is run by the runtime itself", 0.0)
    if node.op == "extern":
        reason = f"it runs in ONNX Runtime on the host: {node.attrs['reason']}"
        return Choice(HOST_DEVICE, EXTERN, reason, host_seconds(graph, node, sizes))
    options = {name: _alternative(graph, node, name, target, sizes) for name, target in targets.items()}
    alternatives = tuple(options.values())
    pin = pin_of(node, pins)
    wanted = pin.device if pin else default
    fastest = f"{wanted} is the {'fastest' if len(targets) > 1 else 'only'} device for the whole graph"
    why = f"the pin {str(pin)!r}" if pin else fastest
    chosen = options[wanted]
    if chosen.seconds is not None:
        executor = targets[wanted].executor
        return Choice(wanted, executor, why, chosen.seconds, alternatives)
    reason = f"{wanted} was wanted ({why}), but refuses it: {chosen.refusal}; numpy on the host runs it"
    return Choice(HOST_DEVICE, REFERENCE, reason, host_seconds(graph, node, sizes), alternatives)


def _alternative(graph: Graph, node: Node, name: str, target: Target, sizes: Mapping[str, int]) -> Alternative:
    refusal = target.why_not(graph, node)
    if refusal:
        return Alternative(name, None, refusal)
    return Alternative(name, target.cost(graph, [node], sizes))


def host_seconds(graph: Graph, node: Node, sizes: Mapping[str, int]) -> float:
    """Return a node's predicted time in numpy or ONNX Runtime on the host."""
    from hcomp.targets.cpu.cost import host_cost

    return host_cost(graph, [node], sizes)


def check_devices(devices: Sequence[str]) -> None:
    """Refuse an empty or repeated device list.

    Raises:
        PartitionError: there is nothing to choose from, or a name stands twice.
    """
    if not devices:
        raise PartitionError("no devices are given: name at least one, such as cpu")
    if len(set(devices)) != len(devices):
        raise PartitionError(f"a device stands twice in {', '.join(devices)}")
