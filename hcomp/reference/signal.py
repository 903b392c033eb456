"""Reference functions of spectra: dft and stft; complex values are pairs in the last axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from hcomp.dtypes import numpy_dtype
from hcomp.reference.numeric import Array, Function


def dft(x: Array, *, axis: int, length: int | None = None, inverse: bool = False, onesided: bool = False) -> Array:
    """Return the discrete Fourier transform along `axis` of x [..., 1 or 2] (ONNX's DFT).

    `length` pads with zeros or cuts; the inverse is divided by it. onesided gives the first half
    of a real signal's spectrum, or a real signal from such a half.
    """
    axis %= x.ndim
    values = _complex(x)
    if inverse and onesided:
        n = 2 * (values.shape[axis] - 1) if length is None else length
        return np.fft.irfft(values, n, axis)[..., None].astype(x.dtype)
    n = values.shape[axis] if length is None else length
    if onesided:
        return _pairs(np.fft.rfft(np.real(values), n, axis), x.dtype)
    transform = np.fft.ifft if inverse else np.fft.fft
    return _pairs(transform(values, n, axis), x.dtype)


def stft(signal: Array, window: Array | None = None, *, length: int, step: int, onesided: bool = True) -> Array:
    """Return spectra of frames of signal [B, L, 1 or 2]: [B, frames, bins, 2] (ONNX's STFT)."""
    values = _complex(signal)
    frames = np.lib.stride_tricks.sliding_window_view(values, length, axis=1)[:, ::step]
    if window is not None:
        frames = frames * window.astype(values.real.dtype)
    if onesided:
        return _pairs(np.fft.rfft(np.real(frames), axis=-1), signal.dtype)
    return _pairs(np.fft.fft(frames, axis=-1), signal.dtype)


def _complex(x: Array) -> Any:
    """Return pairs as complex numbers, a last axis of 1 as real ones, of x's precision (at least single)."""
    wide = x if x.dtype == np.float64 else x.astype(np.float32)
    if x.shape[-1] == 1:
        return wide[..., 0]
    values = np.empty(wide.shape[:-1], np.complex128 if wide.dtype == np.float64 else np.complex64)
    values.real, values.imag = wide[..., 0], wide[..., 1]
    return values


def _pairs(values: Any, dtype: Any) -> Array:
    return np.stack([values.real, values.imag], axis=-1).astype(dtype)


def mel_weights(bins: Array, length: Array, rate: Array, low: Array, high: Array, *, dtype: str) -> Array:
    """Return ONNX's MelWeightMatrix [length // 2 + 1, bins]: triangles between neighbouring mel edges."""
    count, size = int(bins.reshape(-1)[0]), int(length.reshape(-1)[0])
    first, last = (2595 * np.log10(1 + float(f.reshape(-1)[0]) / 700) for f in (low, high))
    mels = first + np.arange(count + 2) * ((last - first) / (count + 2))
    hertz = 700 * (10 ** (mels / 2595) - 1)
    edges = ((size + 1) * hertz / float(rate.reshape(-1)[0])).astype(np.int64)
    weights = np.zeros((size // 2 + 1, count))
    for i in range(count):
        left, centre, right = edges[i : i + 3]
        weights[centre, i] = 1
        rising, falling = np.arange(left, centre), np.arange(centre, right)
        weights[left:centre, i] = (rising - left) / max(centre - left, 1)
        weights[centre:right, i] = (right - falling) / max(right - centre, 1)
    return weights.astype(numpy_dtype(dtype))


def affine_grid(theta: Array, size: Array, *, align_corners: bool = False) -> Array:
    """Return sampling grids [N, *sizes, rank] for affine maps theta [N, rank, rank + 1] (ONNX's AffineGrid).

    `size` is (N, C, *sizes); grid entries are (x, y[, z]).
    """
    sizes = [int(s) for s in size[2:]]
    axes = [
        np.linspace(-1, 1, s) if align_corners and s > 1 else (2 * np.arange(s) + 1) / s - 1 if s else np.zeros(0)
        for s in sizes
    ]
    places = np.meshgrid(*axes, indexing="ij")
    ones = np.ones_like(places[0])
    points = np.stack([*reversed(places), ones], axis=-1)
    grid: Array = np.einsum("...k,nrk->n...r", points, theta.astype(np.float64)).astype(theta.dtype)
    return grid


TABLE: dict[str, Function] = {"dft": dft, "stft": stft, "mel_weights": mel_weights, "affine_grid": affine_grid}
