"""ONNX Attention, RotaryEmbedding and their kin: hcomp's converters against ONNX Runtime."""

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from hcomp.testing import random_array
from tests.onnx_case import Case, captured, case, check, model_of, params_of

B, S, L, P, H, G, D, V = 2, 4, 6, 3, 4, 2, 8, 5


def f32(*shape: int) -> np.ndarray:
    return random_array("float32", shape, "attention")


def lengths(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def visible(*shape: int) -> np.ndarray:
    mask = random_array("bool", shape, "mask")
    mask[..., 0] = True
    return mask


def with_reference(made: Case) -> Case:
    """The case with what onnx's own evaluator gives: the standard, where ONNX Runtime lacks the form."""
    given = {f"i{k}": x for k, x in enumerate(made.inputs) if x is not None}
    made.expected = ReferenceEvaluator(model_of(made, "static")).run(None, given)
    return made


def attention(*rest: Any, groups: int = H, flat: bool = False, keys: int = L, **attrs: Any) -> Case:
    """q, k, v of the usual sizes, then the inputs from the mask on."""
    if flat:
        q, k, v = f32(B, S, H * D), f32(B, keys, groups * D), f32(B, keys, groups * V)
        attrs |= {"q_num_heads": H, "kv_num_heads": groups}
    else:
        q, k, v = f32(B, H, S, D), f32(B, groups, keys, D), f32(B, groups, keys, V)
    outputs = attrs.pop("outputs", 1)
    opset = attrs.pop("opset", 23)
    params = [i + 3 for i, x in enumerate(rest) if i in (0, 3) and x is not None]
    forms = ["static", "symbolic"] if params else ["static"]
    made = case("Attention", q, k, v, *rest, opset=opset, outputs=outputs, params=params, forms=forms, **attrs)
    return with_reference(made)


PLAIN = [
    *(attention(groups=g, flat=f, is_causal=c) for g in (H, G, 1) for f in (False, True) for c in (0, 1)),
    attention(scale=0.3, softcap=2.0),
    attention(softmax_precision=1),
    attention(opset=24, is_causal=1, groups=G),
]
MASKS = [
    *(
        attention(mask, is_causal=c, groups=G)
        for mask in (visible(S, L), visible(B, 1, S, L), visible(H, S, L), f32(S, L), f32(B, H, S, L))
        for c in (0, 1)
    ),
    attention(visible(S, L - 2), opset=24),
    attention(f32(B, 1, S, L - 2), opset=24),
    # A query that sees no key gives zeros, not NaN.
    attention(np.array([[True] * L, [False] * L, [True] * L, [False] * L])),
    attention(np.where(np.arange(S)[:, None] == 1, -np.inf, 0).astype(np.float32) + f32(S, L), qk_matmul_output_mode=3),
]
CACHES = [
    *(
        attention(None if m is None else m, f32(B, G, P, D), f32(B, G, P, V), groups=G, keys=S,
                  is_causal=c, outputs=3)
        for m in (None, visible(S, S + P))
        for c in (0, 1)
    ),
    *(
        attention(m, None, None, lengths(4, 5), is_causal=c, groups=G, opset=24)
        for m in (None, visible(S, L))
        for c in (0, 1)
    ),
    attention(None, None, None, lengths(2, 6), is_causal=1, opset=24),
    attention(None, None, None, lengths(4, 6), opset=25, left_window_size=1, right_window_size=0),
    *(attention(opset=25, left_window_size=a, right_window_size=b, is_causal=c)
      for a, b, c in ((1, 0, 0), (2, -1, 1), (-1, 1, 0), (0, 0, 1))),
]  # fmt: skip


def exposed(mode: int) -> Case:
    past = f32(B, H, P, D), f32(B, H, P, V)
    return attention(f32(S, S + P), *past, keys=S, outputs=4, qk_matmul_output_mode=mode, softcap=1.5)


STAGES = [exposed(mode) for mode in (1, 2, 3)]
HALF = [
    with_reference(case("Attention", *(f32(B, H, S, D).astype(d) for _ in range(3)), opset=23, is_causal=1))
    for d in ("float16", "bfloat16")
]


def rotary(x: np.ndarray, *, half: int = D // 2, positions: bool = True, **attrs: Any) -> Case:
    where = random_array("int64", (B, S), "rotary", low=0, high=9)
    table = (10, half) if positions else (B, S, half)
    rest = [where] if positions else []
    params = [1, 2] if positions else []
    return case("RotaryEmbedding", x, f32(*table), f32(*table), *rest, opset=23, params=params,
                forms=["static", "late"], **attrs)  # fmt: skip


ROTARY = [
    *(rotary(f32(B, H, S, D), positions=p, interleaved=i) for p in (True, False) for i in (0, 1)),
    *(rotary(f32(B, S, H * D), num_heads=H, interleaved=i) for i in (0, 1)),
    rotary(f32(B, H, S, D), half=2, rotary_embedding_dim=4),
    rotary(f32(B, S, H * D), half=3, num_heads=H, rotary_embedding_dim=6, interleaved=1),
]


def linear(rule: str, *, groups: int = G, per_key: bool = True, state: bool = True, **attrs: Any) -> Case:
    decay = -np.abs(f32(B, S, groups * (D if per_key else 1)))
    beta = np.abs(f32(B, S, groups))
    inputs: list[Any] = [f32(B, S, H * D), f32(B, S, groups * D) * np.float32(0.3), f32(B, S, groups * V)]
    inputs.append(f32(B, groups, D, V) if state else None)
    inputs.append(decay if "gated" in rule else None)
    inputs.append(beta if "delta" in rule else None)
    return with_reference(
        case("LinearAttention", *inputs, opset=27, outputs=2, update_rule=rule, q_num_heads=H,
             kv_num_heads=groups, forms=["static", "symbolic"], **attrs)
    )  # fmt: skip


LINEAR = [
    *(linear(rule, state=s) for rule in ("linear", "gated", "delta", "gated_delta") for s in (True, False)),
    linear("gated_delta", groups=1, per_key=False, scale=0.5),
]


def conv(*rest: Any, **attrs: Any) -> Case:
    made = case("CausalConvWithState", f32(B, 3, S), f32(3, 1, 4), *rest, opset=27, outputs=2,
                params=[1], forms=["static", "symbolic"], **attrs)  # fmt: skip
    return with_reference(made)


CONVS = [
    conv(),
    conv(f32(3), activation="silu"),
    conv(f32(3), f32(B, 3, 3)),
    conv(None, f32(B, 3, 3), activation="swish"),
]


@pytest.mark.parametrize(**params_of([*PLAIN, *MASKS, *CACHES, *STAGES, *HALF]))
def test_attention_agrees_with_the_standard(case: Case, form: str) -> None:
    check(case, form)


@pytest.mark.parametrize(**params_of(ROTARY))
def test_rotation_agrees_with_onnx_runtime(case: Case, form: str) -> None:
    check(case, form)


@pytest.mark.parametrize(**params_of([*LINEAR, *CONVS]))
def test_recurrent_attention_agrees_with_the_standard(case: Case, form: str) -> None:
    check(case, form)


def test_grouped_heads_need_no_copies_of_the_keys() -> None:
    """The query heads of a group are rows of one product."""
    ops = [n.op for n in captured(attention(groups=G), "static").nodes]
    assert "tile" not in ops
    assert "broadcast_to" not in ops
    assert ops.count("matmul") == 2


@pytest.mark.parametrize("causal", [0, 1])
def test_a_mask_of_one_row_is_for_all_queries(causal: int) -> None:
    """onnx's evaluator takes it for the mask of the only query, and ONNX Runtime refuses it."""
    mask = f32(1, L)
    whole = attention(np.ascontiguousarray(np.broadcast_to(mask, (S, L))), is_causal=causal)
    one = attention(mask, is_causal=causal)
    one.expected = whole.expected
    check(one, "symbolic")
