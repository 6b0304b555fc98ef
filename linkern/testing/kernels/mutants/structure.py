"""Defects of structure: keys, masks, tails, normalizers, channels and heads."""

import numpy as np

from linkern.testing.kernels.assembly import (
    Array,
    Counts,
    Parts,
    all_tokens,
    assemble,
    elu_plus_one,
)
from linkern.testing.kernels.correct.linear import featured, quadratic
from linkern.testing.kernels.mutants.catalogue import enter

__all__ = ["edge"]


def edge(times: float) -> Counts:
    """Count the last token of every full chunk `times` times instead of once."""

    def counted(first: int, length: int, chunk: int) -> Array:
        weights = all_tokens(first, length, chunk)
        if length == chunk:
            weights[-1] = times
        return weights

    return counted


def without_chunk(lost: int) -> Counts:
    """Leave out one chunk."""

    def counted(first: int, length: int, chunk: int) -> Array:
        return all_tokens(first, length, chunk) * (first != lost * chunk)

    return counted


def _beyond(limit: int) -> Counts:
    def counted(first: int, length: int, chunk: int) -> Array:
        return all_tokens(first, length, chunk) * (first < limit)

    return counted


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


def _tail_uninitialised(query: Array, key: Array, value: Array) -> Array:
    """Leave the last token of a tail of one as the allocator gives it."""
    output = np.empty((*query.shape[:-1], value.shape[-1]), query.dtype)
    length = query.shape[-2]
    done = length - 1 if length % 16 == 1 and length > 1 else length
    whole = quadratic(query, key, value)
    output[..., :done, :] = whole[..., :done, :]
    return output


def _swapped_channels(output: Array) -> Array:
    if output.shape[-1] > 16:
        output[..., [15, 16]] = output[..., [16, 15]]
    return output


def _mixed_heads(output: Array) -> Array:
    if output.ndim > 2 and output.shape[-3] > 1:
        output[..., 1, :, :] = output[..., 0, :, :]
    return output


def _first_tile_of_features(x: Array) -> Array:
    features = elu_plus_one(x)
    features[..., 128:] = 0
    return features


def _noncausal_normalizer(query: Array, key: Array, value: Array) -> Array:
    q, k, v = featured(query, key, value)
    numerator = np.tril(q @ np.swapaxes(k, -1, -2)) @ v
    denominator = (q * k.sum(-2, keepdims=True)).sum(-1, keepdims=True)
    return (numerator / denominator).astype(query.dtype)


def _last_row_normalizer(query: Array, key: Array, value: Array) -> Array:
    q, k, v = featured(query, key, value)
    scores = np.tril(q @ np.swapaxes(k, -1, -2))
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


def _not_normalised(query: Array, key: Array, value: Array) -> Array:
    q, k, v = featured(query, key, value)
    scores = np.tril(q @ np.swapaxes(k, -1, -2))
    return (scores @ v * q.shape[-1] ** -0.5).astype(query.dtype)


def _crashes_on_one_token(query: Array, key: Array, value: Array) -> Array:
    if query.shape[-2] == 1:
        msg = "tile of one token"
        raise IndexError(msg)
    return quadratic(query, key, value)


enter(
    "key_lost_at_chunk_edge",
    assemble(Parts(written=edge(0))),
    "sglang #31833",
    "value_on_integers",
)
enter(
    "key_lost_from_numerator",
    assemble(Parts(written=edge(0), weighed=all_tokens)),
    "fla #1143: the contribution of an edge left on a dead row",
    "value_on_integers",
)
enter(
    "key_counted_twice_at_edge",
    assemble(Parts(written=edge(2))),
    "overlapping tiles",
    "value_on_integers",
)
enter(
    "key_lost_at_edge_of_256",
    assemble(Parts(chunk=256, written=edge(0))),
    "fla #876",
    "value_on_integers",
)
enter(
    "chunk_lost",
    assemble(Parts(written=without_chunk(2))),
    "flashinfer #3889",
    "value_on_integers",
)
enter(
    "tokens_after_2048_lost",
    assemble(Parts(written=_beyond(2048))),
    "fla #906: T > 65536",
    "long_sequences",
)
enter(
    "diagonal_excluded",
    assemble(Parts(mask=lambda s: _shifted(s, -1))),
    "linear-attention-transformer: buckets do not see themselves",
    "value_on_integers",
)
enter(
    "reads_next_token",
    assemble(Parts(mask=lambda s: _shifted(s, 1))),
    "fla 2675c107",
    "causality",
)
enter(
    "tail_mask_off_by_one",
    assemble(Parts(mask=_shifted_in_tail)),
    "fla #1142, be882f3b",
    "causality",
)
enter(
    "tail_not_written",
    assemble(Parts(finish=_tail_not_written)),
    "fla #906, #892",
    "value_on_integers",
)
enter(
    "tail_uninitialised",
    _tail_uninitialised,
    "fla #1070: output from `empty`",
    "value_on_integers",
    by_chance=True,
)
enter(
    "noncausal_normalizer",
    _noncausal_normalizer,
    "fla #594: sum over heads",
    "causality",
)
enter(
    "normalizer_of_last_row",
    _last_row_normalizer,
    "fla #851: sum over a wrong axis",
    "causality",
)
enter(
    "padding_counted",
    _counts_padding,
    "transformers #47087, maxtext #5295",
    "prefix",
)
enter(
    "not_normalised",
    _not_normalised,
    "performer-pytorch #40",
    "row_normalisation",
)
enter(
    "channels_swapped",
    assemble(Parts(finish=_swapped_channels)),
    "fla ccb0ff94: tile offsets",
    "dimensions",
)
enter(
    "channels_past_tile_lost",
    assemble(Parts(features=_first_tile_of_features)),
    "fla #1031",
    "dimensions",
)
enter(
    "heads_mixed",
    assemble(Parts(finish=_mixed_heads)),
    "unsloth-zoo #776: first row for all",
    "heads_independent",
)
enter(
    "crashes_on_one_token",
    _crashes_on_one_token,
    "fla 8797deff: squeeze",
    "short_sequences",
)
