"""Kernels broken on purpose, one defect each.

A check that no mutant fails is a check that may not work. Most are one chunkwise kernel
with one part replaced.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from linkern.testing.correct import (
    Kernel,
    Parts,
    all_tokens,
    assemble,
    elu_plus_one,
    quadratic,
    wide,
)

__all__ = ["FAULTY"]

Array = Any


def _rounded_to(bits: int) -> Callable[[Array], Array]:
    """Round to nearest with `bits` significand bits."""

    def rounded(x: Array) -> Array:
        mantissa, exponent = np.frexp(x)
        kept = np.round(mantissa * 2.0**bits) / 2.0**bits
        return np.ldexp(kept, exponent).astype(x.dtype)

    return rounded


def _truncated_to(bits: int) -> Callable[[Array], Array]:
    def truncated(x: Array) -> Array:
        mantissa, exponent = np.frexp(x)
        kept = np.trunc(mantissa * 2.0**bits) / 2.0**bits
        return np.ldexp(kept, exponent).astype(x.dtype)

    return truncated


def _edge(times: float) -> Callable[[int, int, int], Array]:
    """Write the last token of every full chunk `times` times instead of once."""

    def written(first: int, length: int, chunk: int) -> Array:
        weights = all_tokens(first, length, chunk)
        if length == chunk:
            weights[-1] = times
        return weights

    return written


def _without_chunk(lost: int) -> Callable[[int, int, int], Array]:
    def written(first: int, length: int, chunk: int) -> Array:
        return all_tokens(first, length, chunk) * (first != lost * chunk)

    return written


def _shifted(scores: Array, offset: int) -> Array:
    kept = np.tril(scores, offset)
    if offset < 0:  # the first token has nothing else to see
        kept[..., 0, 0] = scores[..., 0, 0]
    return kept


def _shifted_in_tail(scores: Array) -> Array:
    return np.tril(scores, 1 if scores.shape[-1] < 16 else 0)


def _tail_not_written(output: Array) -> Array:
    full = output.shape[-2] // 16 * 16
    if full:
        output[..., full:, :] = 0
    return output


def _swapped_channels(output: Array) -> Array:
    if output.shape[-1] > 16:
        output[..., [15, 16]] = output[..., [16, 15]]
    return output


def _mixed_heads(output: Array) -> Array:
    if output.ndim > 2 and output.shape[-3] > 1:
        output[..., 1, :, :] = output[..., 0, :, :]
    return output


def _narrow_cast(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(x.dtype)


def _coarse_reciprocal(numerator: Array, denominator: Array) -> Array:
    return numerator * _truncated_to(12)(1 / denominator)


def _noncausal_normalizer(query: Array, key: Array, value: Array) -> Array:
    q, k, v = wide(query, key, value)
    q, k = elu_plus_one(q), elu_plus_one(k)
    numerator = np.tril(q @ np.swapaxes(k, -1, -2)) @ v
    denominator = (q * k.sum(-2, keepdims=True)).sum(-1, keepdims=True)
    return (numerator / denominator).astype(query.dtype)


def _last_row_normalizer(query: Array, key: Array, value: Array) -> Array:
    q, k, v = wide(query, key, value)
    scores = np.tril(elu_plus_one(q) @ np.swapaxes(elu_plus_one(k), -1, -2))
    denominator = scores.sum(-1, keepdims=True)[..., -1:, :]
    return ((scores @ v) / denominator).astype(query.dtype)


def _counts_padding(query: Array, key: Array, value: Array) -> Array:
    """Pad to whole chunks: the padding's keys are 0, but their features are 1."""
    padding = -key.shape[-2] % 16
    shape = (*key.shape[:-2], padding, key.shape[-1])
    k = np.concatenate([np.zeros(shape, key.dtype), key], axis=-2)
    q = np.concatenate([np.zeros(shape, key.dtype), query], axis=-2)
    zeros = np.zeros((*shape[:-1], value.shape[-1]), value.dtype)
    v = np.concatenate([zeros, value], axis=-2)
    return quadratic(q, k, v)[..., padding:, :]


def _half_scale_no_normaliser(query: Array, key: Array, value: Array) -> Array:
    q, k, v = wide(query, key, value)
    scores = np.tril(elu_plus_one(q) @ np.swapaxes(elu_plus_one(k), -1, -2))
    return (scores @ v * q.shape[-1] ** -0.5).astype(query.dtype)


def _crashes_on_one_token(query: Array, key: Array, value: Array) -> Array:
    if query.shape[-2] == 1:
        msg = "tile of one token"
        raise IndexError(msg)
    return quadratic(query, key, value)


def _overwrites_key(query: Array, key: Array, value: Array) -> Array:
    output = quadratic(query, key, value)
    key[...] = elu_plus_one(key)
    return output


def _returns_zeros(query: Array, key: Array, value: Array) -> Array:
    del key
    return np.zeros((*query.shape[:-1], value.shape[-1]), query.dtype)


def _returns_float64(query: Array, key: Array, value: Array) -> Array:
    return quadratic(query, key, value).astype(np.float64)


def _returns_list(query: Array, key: Array, value: Array) -> Any:
    return quadratic(query, key, value).tolist()


def _transposes_output(query: Array, key: Array, value: Array) -> Array:
    return np.swapaxes(quadratic(query, key, value), -1, -2)


def _jitters(query: Array, key: Array, value: Array) -> Array:
    output = quadratic(query, key, value)
    return output * (1 + (time.perf_counter_ns() % 2) * np.finfo(output.dtype).eps)


_replay: dict[Any, Array] = {}


def _replays_by_address(query: Array, key: Array, value: Array) -> Array:
    where = (value.__array_interface__["data"][0], value.shape, float(query.sum()))
    if where not in _replay:
        _replay.clear()
        _replay[where] = quadratic(query, key, value)
    return _replay[where].copy()


_left: dict[Any, tuple[Array, Array]] = {}


def _keeps_state_between_calls(query: Array, key: Array, value: Array) -> Array:
    """Start from the last token of the previous call of the same shape."""
    q, k, v = wide(query, key, value)
    q, k = elu_plus_one(q), elu_plus_one(k)
    scores = np.tril(q @ np.swapaxes(k, -1, -2))
    numerator, denominator = scores @ v, scores.sum(-1, keepdims=True)
    shape = (key.shape, value.shape, str(key.dtype))
    if shape in _left:
        old_key, old_value = _left[shape]
        weight = (q * old_key).sum(-1, keepdims=True)
        numerator, denominator = numerator + weight * old_value, denominator + weight
    _left.clear()
    _left[shape] = (k[..., -1:, :].copy(), v[..., -1:, :].copy())
    return (numerator / denominator).astype(query.dtype)


def _part(**replaced: Any) -> Kernel:
    return assemble(replace(Parts(), **replaced))


def _plus(eps: float) -> Callable[[Array, Array], Array]:
    return lambda n, d: n / (d + np.asarray(eps, d.dtype))


FAULTY: dict[str, Kernel] = {
    "key_lost_at_chunk_edge": _part(written=_edge(0)),
    "key_lost_from_numerator": _part(written=_edge(0), weighed=all_tokens),
    "key_counted_twice_at_edge": _part(written=_edge(2)),
    "key_lost_at_edge_of_256": _part(chunk=256, written=_edge(0)),
    "chunk_lost": _part(written=_without_chunk(2)),
    "diagonal_excluded": _part(mask=lambda s: _shifted(s, -1)),
    "reads_next_token": _part(mask=lambda s: _shifted(s, 1)),
    "tail_mask_off_by_one": _part(mask=_shifted_in_tail),
    "tail_not_written": _part(finish=_tail_not_written),
    "noncausal_normalizer": _noncausal_normalizer,
    "normalizer_of_last_row": _last_row_normalizer,
    "padding_counted": _counts_padding,
    "eps_1e-6": _part(divide=_plus(1e-6)),
    "eps_1e-10": _part(divide=_plus(1e-10)),
    "denominator_clamped": _part(divide=lambda n, d: n / np.maximum(d, 1e-3)),
    "coarse_reciprocal": _part(divide=_coarse_reciprocal),
    "not_normalised": _half_scale_no_normaliser,
    "bfloat16_state": _part(carried=_rounded_to(8)),
    "tfloat32_state": _part(carried=_rounded_to(11)),
    "bfloat16_normalizer": _part(normalizer=_rounded_to(8)),
    "bfloat16_scores": _part(scores=_rounded_to(8)),
    "tfloat32_operands": _part(operand=_rounded_to(11)),
    "float16_values": _part(values=_narrow_cast),
    "output_truncated": _part(finish=_truncated_to(16)),
    "channels_swapped": _part(finish=_swapped_channels),
    "heads_mixed": _part(finish=_mixed_heads),
    "nan_swallowed_as_zero": _part(values=lambda v: np.where(abs(v) > 1e3, 0, v)),
    "crashes_on_one_token": _crashes_on_one_token,
    "overwrites_key": _overwrites_key,
    "returns_zeros": _returns_zeros,
    "returns_float64": _returns_float64,
    "returns_list": _returns_list,
    "transposes_output": _transposes_output,
    "jitters": _jitters,
    "replays_by_address": _replays_by_address,
    "keeps_state_between_calls": _keeps_state_between_calls,
}
