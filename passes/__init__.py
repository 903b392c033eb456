"""The passes on graphs, one a file, and the order in which they run."""

from hcomp.passes.base import Pass, repeat
from hcomp.passes.canonicalize import CANONICALIZE
from hcomp.passes.channels_last import CHANNELS_LAST
from hcomp.passes.drop_dead import DROP_DEAD
from hcomp.passes.fold_batch_norm import FOLD_BATCH_NORM
from hcomp.passes.fold_constants import FOLD_CONSTANTS
from hcomp.passes.fuse_attention import FUSE_ATTENTION
from hcomp.passes.inline_branches import INLINE_BRANCHES
from hcomp.passes.integer_products import INTEGER_PRODUCTS
from hcomp.passes.loop_invariants import LOOP_INVARIANTS
from hcomp.passes.merge_duplicates import MERGE_DUPLICATES
from hcomp.passes.sink_constants import SINK_CONSTANTS

SIMPLIFY = repeat(
    "simplify",
    # First: what it removes nobody has to evaluate.
    DROP_DEAD,
    # Captured constants are sunk next.
    LOOP_INVARIANTS,
    # So that bodies are folded too.
    SINK_CONSTANTS,
    # Before the rules that look for constants.
    FOLD_CONSTANTS,
    # Needs the conditions folded; what it brings out of branches is simplified in the next round.
    INLINE_BRANCHES,
    CANONICALIZE,
    # Last: simpler nodes are equal more often.
    MERGE_DUPLICATES,
)
"""Until nothing changes."""

PASSES: dict[str, Pass] = {
    p.name: p
    for p in (
        CANONICALIZE,
        CHANNELS_LAST,
        DROP_DEAD,
        FOLD_BATCH_NORM,
        FOLD_CONSTANTS,
        FUSE_ATTENTION,
        INLINE_BRANCHES,
        INTEGER_PRODUCTS,
        LOOP_INVARIANTS,
        MERGE_DUPLICATES,
        SIMPLIFY,
        SINK_CONSTANTS,
    )
}
"""Every pass by name."""

PIPELINE: tuple[Pass, ...] = (
    # What follows matches on the simplest form.
    SIMPLIFY,
    # Needs the scale and the shift of a normalisation to be constants.
    FOLD_BATCH_NORM,
    # The new weights and shifts are products of constants; a scale can be left that is all ones.
    SIMPLIFY,
)
"""What every model goes through between capture and partition."""

__all__ = ["PASSES", "PIPELINE", "Pass", "repeat"]
