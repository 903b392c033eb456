"""Random numbers: host operators; a seed makes them repeatable."""

from __future__ import annotations

from hcomp.capture.context import Converter, NodeContext
from hcomp.capture.onnx_types import element_type
from hcomp.dims import DimLike


def _draw(c: NodeContext, op: str, shape: tuple[DimLike, ...], dtype: str) -> str:
    names = {"random_normal": (("mean", 0.0), ("scale", 1.0)), "random_uniform": (("low", 0.0), ("high", 1.0))}
    numbers = {name: c.attr(name, default) for name, default in names[op]}
    return c.b.emit(op, shape=shape, dtype=dtype, seed=c.attr("seed"), **numbers)


def _fresh(op: str) -> Converter:
    def convert(c: NodeContext) -> str:
        return _draw(c, op, tuple(c.required("shape")), element_type(c.attr("dtype", 1)))

    return convert


def _like(op: str) -> Converter:
    def convert(c: NodeContext) -> str:
        wanted = c.attr("dtype")
        return _draw(c, op, c.shape(0), c.dtype(0) if wanted is None else element_type(wanted))

    return convert


def _bernoulli(c: NodeContext) -> str:
    wanted = c.attr("dtype")
    dtype = c.dtype(0) if wanted is None else element_type(wanted)
    return c.emit("bernoulli", 0, dtype=dtype, seed=c.attr("seed"))


def _multinomial(c: NodeContext) -> str:
    dtype = element_type(c.attr("dtype", 6))
    return c.emit("multinomial", 0, samples=c.attr("sample_size", 1), dtype=dtype, seed=c.attr("seed"))


RANDOM: dict[str, Converter] = {
    "RandomNormal": _fresh("random_normal"),
    "RandomUniform": _fresh("random_uniform"),
    "RandomNormalLike": _like("random_normal"),
    "RandomUniformLike": _like("random_uniform"),
    "Bernoulli": _bernoulli,
    "Multinomial": _multinomial,
}
