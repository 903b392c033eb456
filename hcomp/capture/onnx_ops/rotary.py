"""RotaryEmbedding of ai.onnx (23), and the rotation that the com.microsoft operators share."""

from __future__ import annotations

from hcomp.capture.context import Converter, NodeContext
from hcomp.dims import DimLike


def rotate(c: NodeContext, x: str, cos: str, sin: str, size: int, *, interleaved: bool) -> str:
    """Return x [B, S, H, D] with its first `size` channels rotated in pairs.

    `cos` and `sin` broadcast with [B, S, 1, size / 2]. A pair is (i, i + size/2), or (2i, 2i + 1)
    where interleaved.
    """
    *front, width = c.shape(x)
    turned = _cut(c, x, 0, size) if width != size else x
    half = size // 2
    if interleaved:
        pairs = c.reshape(turned, (*front, half, 2))
        first, second = (c.reshape(_cut(c, pairs, i, 1), (*front, half)) for i in (0, 1))
    else:
        first, second = _cut(c, turned, 0, half), _cut(c, turned, half, half)
    real = c.emit("subtract", c.emit("multiply", cos, first), c.emit("multiply", sin, second))
    imaginary = c.emit("add", c.emit("multiply", sin, first), c.emit("multiply", cos, second))
    if interleaved:
        both = [c.emit("expand_dims", v, axis=(-1,)) for v in (real, imaginary)]
        turned = c.reshape(c.emit("concat", *both, axis=-1), (*front, size))
    else:
        turned = c.emit("concat", real, imaginary, axis=-1)
    if width == size:
        return turned
    return c.emit("concat", turned, _cut(c, x, size, width - size), axis=-1)


def _cut(c: NodeContext, x: str, begin: int, size: DimLike) -> str:
    """Return `size` elements of the last axis from `begin` on."""
    return c.emit("strided_slice", x, axes=(c.rank(x) - 1,), begin=(begin,), size=(size,), strides=(1,))


def even_size(c: NodeContext, wanted: int, width: DimLike) -> int:
    """Return how many channels rotate: the attribute, or all of them."""
    size = wanted or width
    if not isinstance(size, int) or size % 2:
        raise c.refuse(f"it rotates {size} channels, which is no even number")
    return size


def _rotary(c: NodeContext) -> str:
    heads, interleaved = c.attr("num_heads", 0), bool(c.attr("interleaved", 0))
    wanted, rank = c.attr("rotary_embedding_dim", 0), c.rank(0)
    if rank == 4:
        x = c.emit("permute_dims", 0, axes=(0, 2, 1, 3))
    elif rank == 3 and heads:
        batch, length, width = c.shape(0)
        x = c.reshape(0, (batch, length, heads, width // heads))
    else:
        raise c.refuse(f"its input has rank {rank} and it names {heads} heads")
    cos, sin = c.input(1), c.input(2)
    if c.has(3):
        cos, sin = (c.emit("take", v, c.cast(3, "int64"), axis=0) for v in (cos, sin))
    cos, sin = (c.emit("expand_dims", v, axis=(2,)) for v in (cos, sin))
    size = even_size(c, wanted, c.shape(x)[3])
    y = rotate(c, x, cos, sin, size, interleaved=interleaved)
    return c.reshape(y, c.shape(0)) if rank == 3 else c.emit("permute_dims", y, axes=(0, 2, 1, 3))


ROTARY: dict[str, Converter] = {"RotaryEmbedding": _rotary}
