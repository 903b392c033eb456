"""From scheduled blocks to plain loops, so that loop-level rewrites (lanes, vector math) can follow.

These are the first passes of TVM's own S-TIR pipeline in its order; running them here is the same
lowering, only earlier, and TVM's pipeline leaves a function without blocks alone.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import s_tir


def lower_blocks(module: tvm.IRModule) -> tvm.IRModule:
    """Return `module` with every block replaced by loops, buffers placed and compacted."""
    transform: Any = s_tir.transform
    return tvm.ir.transform.Sequential(
        [
            transform.LowerInitBlock(),
            transform.PlanAndUpdateBufferAllocationLocation(),
            transform.ConvertBlocksToOpaque(),
            transform.CompactBufferAllocation(),
            transform.LowerMatchBuffer(),
            transform.StmtSimplify(),
            transform.LowerOpaqueBlock(),
        ]
    )(module)
