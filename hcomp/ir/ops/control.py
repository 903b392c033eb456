"""Nodes whose output types are given, not inferred: control flow and extern nodes.

`if`: inputs (condition, *captures); graphs `then` and `else` take the captures.
`loop`: inputs (trip count or "", condition or "", *carried, *captures); attribute `carried` is how
many are carried. Graph `body` takes (iteration int64 [], condition bool [], *carried, *captures) and
returns (condition, *carried, *scans); outputs are the final carried values, then the scans, each
with the trips stacked in front.
`extern`: an operator without a lowering of ours; its `payload` is a serialized ONNX model with
one node, whose inputs and outputs stand in the node's order; `reason` says why.
"""

CONTROL = ("if", "loop")
UNTYPED = (*CONTROL, "extern")
"""Operators that are not in OPS: the builder is told their output types."""
