"""Programs of the NPU written by hand, with what they compute in numpy written from targets/npu/README.md.

The reference uses nothing of the simulator: bfloat16 is ml_dtypes', functions are numpy's in float64, and
integers are numpy's. Each case says how far its floats may be from it, in steps of the output's type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import erf
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from hcomp.targets.npu.builder import Builder
from hcomp.targets.npu.device.machine import Machine, load_machine, machine_from
from hcomp.targets.npu.device.program import Program
from hcomp.targets.npu.tensor import Tensor

Array = NDArray[Any]
BF16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class Case:
    """A program with inputs and what it must give; `steps` of the output's type are allowed for floats."""

    program: Program
    inputs: dict[str, Array]
    expected: dict[str, Array]
    steps: int = 0


def small_machine(**kilobytes: int) -> Machine:
    """Return `edge` with scratchpads so small that places are used again and again."""
    fields = load_machine("edge").to_dict()
    for name, size in ({"act": 6, "wgt": 2, "acc": 4} | kilobytes).items():
        fields["scratchpad"][name]["size_kb"] = size
    return machine_from(fields, "small")


def tiles(n: int, size: int) -> list[slice]:
    return [slice(i, min(i + size, n)) for i in range(0, n, size)]


def gemm_requantize(
    m: int = 70, n: int = 45, k: int = 100, tile: tuple[int, int, int] = (32, 16, 48), machine: Machine | None = None
) -> Case:
    """uint8 x int8 with zero points and bias, by channel; edge tiles everywhere."""
    rng = np.random.default_rng(m + n + k)
    x, w = rng.integers(0, 256, (m, k), np.uint8), rng.integers(-128, 128, (k, n), np.int8)
    bias = rng.integers(-3000, 3000, n).astype(np.int32)
    scale = rng.uniform(0.0003, 0.003, n).astype(np.float32)
    b = Builder("gemm-requantize", machine or load_machine("edge"))
    mx, mw = b.input("x", "uint8", x.shape), b.constant("w", w)
    mb, ms, my = b.constant("bias", bias), b.constant("scale", scale), b.output("y", "uint8", (m, n))
    for j in tiles(n, tile[1]):
        cols = j.stop - j.start
        s = b.alloc("act", "float32", (cols,))
        b.load(s, ms[j])
        for i in tiles(m, tile[0]):
            acc = b.alloc("acc", "int32", (i.stop - i.start, cols))
            b.load(acc, mb[j])
            for part in tiles(k, tile[2]):
                a = b.alloc("act", "uint8", (i.stop - i.start, part.stop - part.start))
                v = b.alloc("wgt", "int8", (part.stop - part.start, cols))
                b.load(a, mx[i, part])
                b.load(v, mw[part, j])
                b.gemm(acc, a, v, accumulate=True, a_zero=113, b_zero=-2)
                b.free(a, v)
            out = b.alloc("act", "uint8", acc.shape)
            b.vector("requantize", out, acc, s, zero=120, low=10)
            b.store(my[i, j], out)
            b.free(acc, out)
        b.free(s)
    sums = (x.astype(np.int64) - 113) @ (w.astype(np.int64) + 2) + bias
    y = np.clip(np.rint(sums.astype(np.float32) * scale) + 120, 10, 255).astype(np.uint8)
    return Case(b.finish(), {"x": x}, {"y": y})


def gemm_gelu(m: int = 33, n: int = 50, k: int = 71) -> Case:
    """bfloat16 x bfloat16 with bias and GELU, k in two parts, output stationary."""
    rng = np.random.default_rng(7)
    x, w = rng.standard_normal((m, k)).astype(BF16), (rng.standard_normal((k, n)) / 8).astype(BF16)
    bias = rng.standard_normal(n).astype(np.float32)
    b = Builder("gemm-gelu", load_machine("edge"))
    mx, mw = b.input("x", "bfloat16", x.shape), b.constant("w", w.view(np.uint16), "bfloat16")
    mb, my = b.constant("bias", bias), b.output("y", "bfloat16", (m, n))
    s = b.alloc("act", "float32", (n,))
    b.load(s, mb)
    acc = b.alloc("acc", "float32", (m, n))
    for part in tiles(k, 40):
        a = b.alloc("act", "bfloat16", (m, part.stop - part.start))
        v = b.alloc("wgt", "bfloat16", (part.stop - part.start, n))
        b.load(a, mx[:, part])
        b.load(v, mw[part])
        b.gemm(acc, a, v, accumulate=part.start > 0, flow=1)
        b.free(a, v)
    b.vector("add", acc, acc, s)
    out = b.alloc("act", "bfloat16", (m, n))
    b.vector("gelu", out, acc)
    b.store(my, out)
    sums = x.astype(np.float64) @ w.astype(np.float64) + bias
    y = 0.5 * sums * (1 + np.vectorize(erf)(sums / np.sqrt(2)))
    return Case(b.finish(), {"x": x}, {"y": y.astype(np.float32).astype(BF16)}, steps=1)


def convolution(step: int = 1, dilation: int = 1) -> Case:
    """3x3, channels last, padding by the load, no copy of windows: the array walks them."""
    h, w, c, o = 13, 11, 5, 21
    rng = np.random.default_rng(step + dilation)
    x = rng.integers(-128, 128, (h, w, c), np.int8)
    f = rng.integers(-128, 128, (3, 3, c, o), np.int8)
    b = Builder("convolution", load_machine("edge"))
    mx, mf = b.input("x", "int8", x.shape), b.constant("f", f)
    tile = b.alloc("act", "int8", (h + 2 * dilation, w + 2 * dilation, c))
    b.load(tile, mx, pad=((dilation, dilation), (dilation, dilation), (0, 0)), fill=-3)
    weights = b.alloc("wgt", "int8", f.shape)
    b.load(weights, mf)
    windows = tile.windows((0, 1), (3, 3), (step, step), (dilation, dilation))
    oh, ow = windows.shape[:2]
    my = b.output("y", "int32", (oh, ow, o))
    acc = b.alloc("acc", "int32", (oh, ow, o))
    b.gemm(acc, windows, weights, inner=3, a_zero=-3)
    b.store(my, acc)
    padded = np.pad(x.astype(np.int64) + 3, ((dilation, dilation), (dilation, dilation), (0, 0)))
    y = np.zeros((oh, ow, o), np.int64)
    for i in range(3):
        for j in range(3):
            part = padded[i * dilation :, j * dilation :][: oh * step : step, : ow * step : step]
            y += part[:oh, :ow] @ f[i, j].astype(np.int64)
    return Case(b.finish(), {"x": x}, {"y": y.astype(np.int32)})


def attention(heads: int = 3, tokens: int = 19, size: int = 8) -> Case:
    """softmax(Q K^T / sqrt d + mask) V in float16, heads as slices of one matrix; sums and scores stay on chip."""
    rng = np.random.default_rng(3)
    qkv = rng.standard_normal((tokens, 3, heads, size)).astype(np.float16)
    mask = np.where(np.arange(tokens) < tokens - 2, 0, -np.inf).astype(np.float32)
    scale = np.float32(1 / np.sqrt(size))
    b = Builder("attention", load_machine("edge"))
    m, mm = b.input("qkv", "float16", qkv.shape), b.constant("mask", mask)
    my = b.output("y", "float16", (tokens, heads, size))
    s = b.alloc("act", "float32", (tokens,))
    b.load(s, mm)
    out = b.alloc("act", "float16", (tokens, heads, size))
    for h in range(heads):
        q = b.alloc("act", "float16", (tokens, size))
        k, v = (b.alloc("wgt", "float16", (tokens, size)) for _ in range(2))
        b.load(q, m[:, 0, h])
        b.load(k, m[:, 1, h])
        b.load(v, m[:, 2, h])
        scores = b.alloc("acc", "float32", (tokens, tokens))
        b.gemm(scores, q, k.transpose())
        p = b.alloc("act", "float16", (tokens, tokens))
        b.vector("softmax", p, scores, s, scale=scale)
        mixed = b.alloc("acc", "float32", (tokens, size))
        b.gemm(mixed, p, v)
        b.vector("cast", out[:, h], mixed)
        b.free(q, k, v, scores, p, mixed)
    b.store(my, out)
    y = np.empty((tokens, heads, size), np.float16)
    for h in range(heads):
        q64, k64, v64 = (qkv[:, i, h].astype(np.float64) for i in range(3))
        z = (q64 @ k64.T) * scale + mask
        e = np.exp(z - z.max(-1, keepdims=True))
        y[:, h] = ((e / e.sum(-1, keepdims=True)).astype(np.float16).astype(np.float64) @ v64).astype(np.float16)
    # A probability that is rounded the other way moves a result by a step or two.
    return Case(b.finish(), {"qkv": qkv}, {"y": y}, steps=4)


def layer_norm(rows: int = 37, size: int = 53) -> Case:
    """A residual and a layer norm of bfloat16 rows, in tiles that do not divide them."""
    rng = np.random.default_rng(5)
    x, r = (rng.standard_normal((rows, size)).astype(BF16) for _ in range(2))
    gamma, beta = (rng.standard_normal(size).astype(np.float32) for _ in range(2))
    b = Builder("layer-norm", load_machine("edge"))
    mx, mr = b.input("x", "bfloat16", x.shape), b.input("r", "bfloat16", x.shape)
    mg, mb, my = b.constant("gamma", gamma), b.constant("beta", beta), b.output("y", "bfloat16", x.shape)
    g, o = b.alloc("act", "float32", (size,)), b.alloc("act", "float32", (size,))
    b.load(g, mg)
    b.load(o, mb)
    for i in tiles(rows, 16):
        p, q = (b.alloc("act", "bfloat16", (i.stop - i.start, size)) for _ in range(2))
        b.load(p, mx[i])
        b.load(q, mr[i])
        wide = b.alloc("acc", "float32", p.shape)
        b.vector("add", wide, p, q)
        b.vector("layer_norm", p, wide, g, o, epsilon=1e-5)
        b.store(my[i], p)
        b.free(p, q, wide)
    t = x.astype(np.float64) + r.astype(np.float64)
    y = (t - t.mean(-1, keepdims=True)) / np.sqrt(t.var(-1, keepdims=True) + np.float32(1e-5)) * gamma + beta
    return Case(b.finish(), {"x": x, "r": r}, {"y": y.astype(np.float32).astype(BF16)}, steps=1)


def max_pool() -> Case:
    """3x3 by steps of 2 with padding: a reduction of windows, of bytes."""
    h, w, c = 12, 15, 7
    x = np.random.default_rng(2).integers(-128, 128, (h, w, c), np.int8)
    b = Builder("max-pool", load_machine("edge"))
    mx = b.input("x", "int8", x.shape)
    tile = b.alloc("act", "int8", (h + 2, w + 2, c))
    b.load(tile, mx, pad=((1, 1), (1, 1), (0, 0)), fill=-128)
    windows = tile.windows((0, 1), (3, 3), (2, 2), (1, 1)).transpose(0, 1, 4, 2, 3)
    out = b.alloc("act", "int8", windows.shape[:3])
    b.vector("amax", out, windows)
    b.store(b.output("y", "int8", out.shape), out)
    padded = np.pad(x, ((1, 1), (1, 1), (0, 0)), constant_values=-128)
    y = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (0, 1))[::2, ::2].max((-1, -2))
    return Case(b.finish(), {"x": x}, {"y": y})


def rotated_cache() -> Case:
    """RoPE on keys, then compression to blocks of 4 bits with a scale, and the way back; memory to memory."""
    tokens, heads, size, block = 9, 2, 32, 32
    rng = np.random.default_rng(4)
    x = rng.standard_normal((tokens, heads, size)).astype(np.float32)
    angle = rng.uniform(0, 6, (tokens, size // 2))
    cosine, sine = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    b = Builder("rotated-cache", load_machine("edge"))
    mx, mc, ms = b.input("x", "float32", x.shape), b.constant("cos", cosine), b.constant("sin", sine)
    mp, my = b.output("cache", "uint8", (tokens, heads, 18)), b.output("y", "float32", x.shape)
    t: Tensor = b.alloc("act", "float32", x.shape)
    c, s = (b.alloc("act", "float32", cosine.shape) for _ in range(2))
    for place, source in ((t, mx), (c, mc), (s, ms)):
        b.load(place, source)
    turned, packed = b.alloc("act", "float32", x.shape), b.alloc("act", "uint8", (tokens, heads, 18))
    b.vector("rope", turned, t, c[:, None], s[:, None], interleaved=0)
    b.vector("compress", packed, turned, bits=4, block=block)
    b.store(mp, packed)
    back = b.alloc("act", "float32", x.shape)
    b.vector("expand", back, packed, bits=4, block=block)
    b.store(my, back)
    p, q = x[..., : size // 2], x[..., size // 2 :]
    cc, ss = cosine[:, None], sine[:, None]
    r = np.concatenate([p * cc - q * ss, q * cc + p * ss], -1)
    scale = (np.abs(r).max(-1, keepdims=True) / np.float32(7)).astype(np.float16)
    level = np.clip(np.rint(r / scale.astype(np.float32)), -7, 7).astype(np.int8)
    nibbles = (level[..., 0::2].view(np.uint8) & 15) + (level[..., 1::2].view(np.uint8) & 15) * 16
    cache = np.concatenate([scale.view(np.uint8), nibbles.astype(np.uint8)], -1)
    return Case(b.finish(), {"x": x}, {"cache": cache, "y": level.astype(np.float32) * scale.astype(np.float32)})


def depthwise() -> Case:
    """A 3x3 depthwise convolution with steps of 2, bias and fixed-point requantization, on the vector unit alone."""
    h, w, c = 10, 9, 12
    rng = np.random.default_rng(8)
    x, f = rng.integers(0, 256, (h, w, c), np.uint8), rng.integers(-128, 128, (3, 3, c), np.int8)
    bias = rng.integers(-5000, 5000, c).astype(np.int32)
    multiplier, shift = rng.integers(1 << 29, 1 << 30, c).astype(np.int32), rng.integers(36, 40, c).astype(np.int32)
    b = Builder("depthwise", load_machine("edge"))
    tile = b.alloc("act", "uint8", (h + 2, w + 2, c))
    b.load(tile, b.input("x", "uint8", x.shape), pad=((1, 1), (1, 1), (0, 0)), fill=7)
    places = []
    for name, array in (("f", f), ("bias", bias), ("multiplier", multiplier), ("shift", shift)):
        places.append(b.alloc("act", array.dtype.name, array.shape))
        b.load(places[-1], b.constant(name, array))
    windows = tile.windows((0, 1), (3, 3), (2, 2), (1, 1)).transpose(0, 1, 4, 2, 3)
    acc, out = b.alloc("acc", "int32", windows.shape[:3]), b.alloc("act", "int8", windows.shape[:3])
    b.vector("idot", acc, windows, places[0].transpose(2, 0, 1)[None, None])
    b.vector("iadd", acc, acc, places[1])
    b.vector("requantize_fixed", out, acc, places[2], places[3], zero=-5)
    b.store(b.output("y", "int8", out.shape), out)
    padded = np.pad(x.astype(np.int64), ((1, 1), (1, 1), (0, 0)), constant_values=7)
    sums = (
        sum(padded[i : i + h : 2, j : j + w : 2] * f[i, j].astype(np.int64) for i in range(3) for j in range(3)) + bias
    )
    y = ((sums * multiplier + (1 << (shift.astype(np.int64) - 1))) >> shift) - 5
    return Case(b.finish(), {"x": x}, {"y": np.clip(y, -128, 127).astype(np.int8)})


def random_program(seed: int, steps: int = 40) -> Program:
    """Return a program of random operations on random parts of a few tensors, with places given back and reused."""
    rng = np.random.default_rng(seed)
    b = Builder("random", small_machine(act=3, wgt=1, acc=2))
    x = b.input("x", "float16", (24, 40))
    y, s = b.output("y", "float16", (24, 40)), b.scratch("s", "float16", (24, 40))
    spaces = ["act", "wgt", "acc", "act"]
    live = [b.alloc(space, "float16", (12, 20)) for space in spaces]

    def part(tensor: Tensor, m: int, n: int) -> Tensor:
        i, j = rng.integers(0, tensor.shape[0] - m + 1), rng.integers(0, tensor.shape[1] - n + 1)
        return tensor[int(i) : int(i) + m, int(j) : int(j) + n]

    for _ in range(steps):
        m, n = (int(v) for v in rng.integers(1, 12, 2))
        one, two, three = (live[int(i)] for i in rng.permutation(len(live))[:3])
        match rng.integers(0, 6):
            case 0 | 1:
                b.load(part(one, m, n), part([x, s][int(rng.integers(0, 2))], m, n))
            case 2:
                b.store(part([y, s][int(rng.integers(0, 2))], m, n), part(one, m, n))
            case 3:
                b.vector("add", part(one, m, n), part(two, m, n), part(three, m, n))
            case 4:
                b.vector("copy", part(one, m, n), part(two, m, n))
            case _:
                k = int(rng.integers(0, len(live)))
                b.free(live[k])
                live[k] = b.alloc(spaces[k], "float16", (12, 20))
    return b.finish(reorder=bool(rng.integers(0, 2)))


CASES: dict[str, Callable[[], Case]] = {
    "gemm_requantize": gemm_requantize,
    "gemm_reusing_places": lambda: gemm_requantize(machine=small_machine()),
    "gemm_gelu": gemm_gelu,
    "convolution": convolution,
    "convolution_strided": lambda: convolution(2, 1),
    "convolution_dilated": lambda: convolution(1, 2),
    "depthwise": depthwise,
    "attention": attention,
    "layer_norm": layer_norm,
    "max_pool": max_pool,
    "rotated_cache": rotated_cache,
}
