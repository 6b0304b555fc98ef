"""Kernels broken on purpose, one defect each, and correct ones in many orders.

A check that no mutant fails is a check that may not work; a correct kernel that fails one
is a false alarm. All are causal linear attention with ``elu(x) + 1``, called as
``f(query, key, value)`` on NumPy arrays ``(..., T, K)``, and most are one chunkwise kernel
with one part replaced.
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["CORRECT", "FAULTY", "Parts", "assemble"]

Array = NDArray[Any]
Kernel = Callable[[Array, Array, Array], Array]


# ---- the parts of a chunkwise kernel -------------------------------------------------


def elu_plus_one(x: Array) -> Array:
    """``elu(x) + 1`` with full relative accuracy."""
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def lower_triangle(scores: Array) -> Array:
    """Keep the scores of the past and the present."""
    return np.tril(scores)


def quotient(numerator: Array, denominator: Array) -> Array:
    """Divide; nothing else."""
    return numerator / denominator


def everything(x: Array) -> Array:
    """Leave as it is."""
    return x


def all_tokens(first: int, length: int, chunk: int) -> NDArray[np.float64]:
    """How often each token of a chunk is written to the memory: once."""
    del first, chunk
    return np.ones(length)


@dataclass(frozen=True)
class Parts:
    """The parts of a chunkwise kernel; each default is right.

    Parameters
    ----------
    chunk : int
        Tokens per chunk.
    features, operand, values, scores, carried, normalizer : callable
        Feature map; what happens to the operands of products, to the values, to the
        scores, to the memory and to the normalizer carried between chunks.
    mask : callable
        Which scores of a chunk count.
    written, weighed : callable
        How often each token of a chunk is added to the memory and to the normalizer.
    divide : callable
        Numerator and denominator to output.
    finish : callable
        Output to what is returned.
    """

    chunk: int = 16
    features: Callable[[Array], Array] = elu_plus_one
    operand: Callable[[Array], Array] = everything
    values: Callable[[Array], Array] = everything
    scores: Callable[[Array], Array] = everything
    carried: Callable[[Array], Array] = everything
    normalizer: Callable[[Array], Array] = everything
    mask: Callable[[Array], Array] = lower_triangle
    written: Callable[[int, int, int], Array] = all_tokens
    weighed: Callable[[int, int, int], Array] | None = None
    divide: Callable[[Array, Array], Array] = quotient
    finish: Callable[[Array], Array] = everything


def assemble(parts: Parts) -> Kernel:
    """Return the chunkwise kernel made of `parts`."""

    def kernel(query: Array, key: Array, value: Array) -> Array:
        wide = np.result_type(query.dtype, np.float32)
        q, k = (parts.operand(parts.features(x.astype(wide))) for x in (query, key))
        v = parts.operand(parts.values(value.astype(wide)))
        memory = np.zeros((*k.shape[:-2], k.shape[-1], v.shape[-1]), wide)
        z = np.zeros((*k.shape[:-2], k.shape[-1]), wide)
        output = np.zeros((*q.shape[:-1], v.shape[-1]), wide)
        for first in range(0, q.shape[-2], parts.chunk):
            span = slice(first, first + parts.chunk)
            qc, kc, vc = q[..., span, :], k[..., span, :], v[..., span, :]
            scores = parts.scores(parts.mask(qc @ np.swapaxes(kc, -1, -2)))
            numerator = qc @ memory + scores @ vc
            denominator = (qc @ z[..., None]) + scores.sum(-1, keepdims=True)
            output[..., span, :] = parts.divide(numerator, denominator)
            sizes = (first, kc.shape[-2], parts.chunk)
            writes = parts.written(*sizes).astype(wide)[:, None]
            weighs = (parts.weighed or parts.written)(*sizes).astype(wide)[:, None]
            memory = parts.carried(memory + np.swapaxes(kc * writes, -1, -2) @ vc)
            z = parts.normalizer(parts.carried(z + (kc * weighs).sum(-2)))
        return parts.finish(output).astype(query.dtype)

    return kernel


# ---- correct kernels in different orders ---------------------------------------------


def _wide(*arrays: Array) -> list[Array]:
    return [x.astype(np.result_type(x.dtype, np.float32)) for x in arrays]


def quadratic(query: Array, key: Array, value: Array) -> Array:
    """All scores at once."""
    q, k, v = _wide(query, key, value)
    scores = np.tril(elu_plus_one(q) @ np.swapaxes(elu_plus_one(k), -1, -2))
    return ((scores @ v) / scores.sum(-1, keepdims=True)).astype(query.dtype)


def recurrent(query: Array, key: Array, value: Array) -> Array:
    """One token after the other."""
    return assemble(Parts(chunk=1))(query, key, value)


def backwards(query: Array, key: Array, value: Array) -> Array:
    """Sum the keys of each row from the last to the first."""
    q, k, v = _wide(query, key, value)
    q, k = elu_plus_one(q), elu_plus_one(k)
    output = np.empty((*q.shape[:-1], v.shape[-1]), v.dtype)
    for i in range(q.shape[-2]):
        weights = (q[..., i : i + 1, :] * k[..., i::-1, :]).sum(-1, keepdims=True)
        terms = weights * v[..., i::-1, :]
        total = np.cumsum(terms, axis=-2)[..., -1, :]
        output[..., i, :] = total / np.cumsum(weights, axis=-2)[..., -1, :]
    return output.astype(query.dtype)


def prefix_sums(query: Array, key: Array, value: Array) -> Array:
    """Materialise every state with a cumulative sum, then read."""
    q, k, v = _wide(query, key, value)
    q, k = elu_plus_one(q), elu_plus_one(k)
    memory = np.cumsum(k[..., :, None] * v[..., None, :], axis=-3)
    z = np.cumsum(k, axis=-2)
    numerator = (q[..., None, :] @ memory)[..., 0, :]
    return (numerator / (q * z).sum(-1, keepdims=True)).astype(query.dtype)


def tree_scan(query: Array, key: Array, value: Array) -> Array:
    """Combine states in a tree, doubling the reach at each level."""
    q, k, v = _wide(query, key, value)
    q, k = elu_plus_one(q), elu_plus_one(k)
    v = np.concatenate([v, np.ones_like(v[..., :1])], axis=-1)
    states = k[..., :, None] * v[..., None, :]
    reach = 1
    while reach < states.shape[-3]:
        later = states[..., reach:, :, :] + states[..., :-reach, :, :]
        states = np.concatenate([states[..., :reach, :, :], later], axis=-3)
        reach *= 2
    read_out = (q[..., None, :] @ states)[..., 0, :]
    return (read_out[..., :-1] / read_out[..., -1:]).astype(query.dtype)


def odd_then_even(query: Array, key: Array, value: Array) -> Array:
    """Sum odd and even keys apart, and add the two, the way split reductions do."""
    q, k, v = _wide(query, key, value)
    scores = np.tril(elu_plus_one(q) @ np.swapaxes(elu_plus_one(k), -1, -2))
    halves = [scores[..., i::2] @ v[..., i::2, :] for i in (1, 0)]
    weights = [scores[..., i::2].sum(-1, keepdims=True) for i in (1, 0)]
    return (sum(halves) / sum(weights)).astype(query.dtype)


def divides_first(query: Array, key: Array, value: Array) -> Array:
    """Scale the queries, normalise the weights, then average, as softmax code does."""
    q, k, v = _wide(query, key, value)
    q = elu_plus_one(q) * np.asarray(q.shape[-1] ** -0.5, q.dtype)
    scores = np.tril(q @ np.swapaxes(elu_plus_one(k), -1, -2))
    return ((scores / scores.sum(-1, keepdims=True)) @ v).astype(query.dtype)


def features_outside(query: Array, key: Array, value: Array) -> Array:
    """Loop over features; each adds its own scan over time."""
    q, k, v = _wide(query, key, value)
    q, k = elu_plus_one(q), elu_plus_one(k)
    numerator = np.zeros((*q.shape[:-1], v.shape[-1]), v.dtype)
    denominator = np.zeros((*q.shape[:-1], 1), v.dtype)
    for feature in range(q.shape[-1]):
        of = slice(feature, feature + 1)
        numerator += q[..., of] * np.cumsum(k[..., of] * v, axis=-2)
        denominator += q[..., of] * np.cumsum(k[..., of], axis=-2)
    return (numerator / denominator).astype(query.dtype)


def multiplies_by_reciprocal(query: Array, key: Array, value: Array) -> Array:
    """Multiply by the reciprocal of the denominator: one rounding more."""
    parts = Parts(chunk=64, divide=lambda n, d: n * (1 / d))
    return assemble(parts)(query, key, value)


def textbook_features(query: Array, key: Array, value: Array) -> Array:
    """``elu(x) + 1`` as most code has it: absolutely, not relatively, accurate."""
    parts = Parts(
        chunk=32, features=lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))) + 1
    )
    return assemble(parts)(query, key, value)


CORRECT: dict[str, Kernel] = {
    kernel.__name__: kernel
    for kernel in (
        quadratic,
        recurrent,
        backwards,
        prefix_sums,
        tree_scan,
        odd_then_even,
        divides_first,
        features_outside,
        multiplies_by_reciprocal,
        textbook_features,
    )
}
CORRECT["chunk_16"] = assemble(Parts())
CORRECT["chunk_100"] = assemble(Parts(chunk=100))


# ---- faulty parts --------------------------------------------------------------------


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
    q, k, v = _wide(query, key, value)
    q, k = elu_plus_one(q), elu_plus_one(k)
    numerator = np.tril(q @ np.swapaxes(k, -1, -2)) @ v
    denominator = (q * k.sum(-2, keepdims=True)).sum(-1, keepdims=True)
    return (numerator / denominator).astype(query.dtype)


def _last_row_normalizer(query: Array, key: Array, value: Array) -> Array:
    q, k, v = _wide(query, key, value)
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
    q, k, v = _wide(query, key, value)
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
    q, k, v = _wide(query, key, value)
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


def segmentation_fault(query: Array, key: Array, value: Array) -> Array:
    """Die of SIGSEGV from the second chunk on."""
    if query.shape[-2] > 64:
        os.kill(os.getpid(), signal.SIGSEGV)
    return quadratic(query, key, value)


def sleeps_for_ever(query: Array, key: Array, value: Array) -> Array:
    """Never return."""
    del query, key, value
    while True:
        time.sleep(3600)


def leaves_the_process(query: Array, key: Array, value: Array) -> Array:
    """Exit the process instead of returning."""
    del query, key, value
    os._exit(0)


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
