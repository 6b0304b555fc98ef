r"""A block of tokens on the way back: no decay, or one for each token.

With ``P`` the pairs of a chunk (decays ``Gamma`` and mask in it), ``S`` and ``z`` the
memory before it, ``e``, ``l`` and ``w`` what is left of that memory for each query, of
each key at the end, and of all before, ``R`` and ``r`` the cotangents of the memory
after it, ``D`` and ``d`` those of what was read and of the weights,

    A  = Gamma * (D V^T + d 1^T)            lower triangular, as P
    dQ = A F + e (D S^T + d z^T)            dF = A^T Q + l (V R^T + 1 r^T)
    dV = P^T D + l F R                      dS = w R + (e Q)^T D

for the features ``Q`` and ``F``. What was read is never computed: it is only needed for
``d = -(P * D V^T + e Q * D S^T) 1 / weights``, of products that are needed anyway. So a
chunk takes ten large products, and one more on the way there, to find its memory.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.kernels.numpy.bwd_workspace import Adjoint
from linkern.kernels.numpy.chunk_linear import as_matrices

__all__ = ["add_back", "add_up", "load", "pull_keys", "pull_queries", "write"]

Real = NDArray[Any]
Tokens = Mapping[str, Real]


def load(block: Adjoint, of: Tokens, *, known: bool) -> None:
    """Take in keys and values: what each chunk alone adds to the memory.

    The place of the gradient of the keys holds their features until it is written; they
    are `known` if they are there already.
    """
    place = block.place(block.shape.cut(of["d_key"]), block.key_rows)
    if known and place is not block.key_rows and block.feature_map is not None:
        block.keys = place
    else:
        block.keys = block.featured(block.shape.cut(of["key"]), place)
    block.kept_keys = block.keys
    if block.decay is not None:
        block.decay.load(block.shape.cut(of["log_decay"])[..., 0])
        leaving = block.decay.leaving.swapaxes(-1, -2)
        block.kept_keys = np.multiply(block.keys, leaving, out=block.left)
    block.values = as_matrices(block.shape.cut(of["value"]), block.wide_values)


def write(block: Adjoint) -> None:
    """Compute what each chunk alone adds to the memory."""
    count = block.values.shape[-1]
    turned = block.values.swapaxes(-1, -2)
    np.matmul(turned, block.kept_keys, out=block.after[:, :, :count])
    if block.normalize:
        ones = block.ones[: block.shape.size].swapaxes(-1, -2)
        np.matmul(ones, block.kept_keys, out=block.after[:, :, count:])


def add_up(block: Adjoint) -> None:
    """Sum the memories up, from `block.first` to `block.last`."""
    for i, before, after in block.up:
        np.add(after, _through(block, i, before), out=after)


def add_back(block: Adjoint) -> None:
    """Sum the cotangents up, from `block.outermost` to `block.innermost`."""
    for i, after, before in block.back:
        np.add(before, _through(block, i, after), out=before)


def _through(block: Adjoint, chunk: int, state: Real) -> Real:
    """Return as much of a state as is left at the other end of a chunk."""
    if block.decay is None:
        return state
    np.multiply(state, block.decay.entering[:, chunk, -1], out=block.step)
    return block.step


def pull_queries(block: Adjoint, of: Tokens) -> None:
    """Write the gradient of the queries, and what they alone add to the cotangents."""
    output = block.shape.cut(of["d_query"])
    memory_told, normalizer_told = block.told
    if "output" not in of:
        output[...] = memory_told[...] = normalizer_told[...] = 0
        return
    count = block.shape.values
    memory, normalizer = block.before[:, :, :count], block.before[:, :, count:]
    rows = block.queries = block.featured(
        block.shape.cut(of["query"]), block.query_rows
    )
    if block.decay is not None:
        rows = np.multiply(rows, block.decay.entering, out=block.entered)
    if block.causal:
        _pair(block)
    block.reading = _cotangent(block, of["output"], rows, normalizer)
    turned = rows.swapaxes(-1, -2)
    np.matmul(turned, block.reading, out=memory_told)
    found = np.matmul(block.reading, memory, out=block.found)
    if block.causal:
        np.copyto(block.turned_values, block.values.swapaxes(-1, -2))
        np.matmul(block.reading, block.turned_values, out=block.pair_cotangent)
    if block.normalize:
        _weight_cotangent(block, rows, found)
        np.matmul(turned, block.weight_cotangent, out=normalizer_told)
        np.multiply(block.weight_cotangent, normalizer, out=block.spare)
        np.add(found, block.spare, out=found)
    if block.decay is not None and block.pair_sums is not None:
        np.multiply(found, block.decay.entering, out=found)
        np.multiply(found, block.queries, out=block.spare)
        block.row_sums(block.spare, block.pair_sums.entering)
    if block.causal:
        _pair_cotangent(block)
        np.matmul(block.pair_cotangent, block.keys, out=block.narrow)
        np.add(found, block.narrow, out=found)
    block.through_features(found, block.queries, output)


def _pair(block: Adjoint) -> None:
    """Compute the pairs of queries and keys, as far as they are seen and left."""
    np.copyto(block.turned_keys, block.keys.swapaxes(-1, -2))
    np.matmul(block.queries, block.turned_keys, out=block.pairs)
    if block.decay is not None:
        np.multiply(block.pairs, block.decay.between, out=block.pairs)
    block.seen(block.pairs)


def _cotangent(block: Adjoint, output: Real, rows: Real, normalizer: Real) -> Real:
    """Return the cotangent of what was read, before it was divided or scaled."""
    given = as_matrices(block.shape.cut(output), block.wide_cotangent)
    if block.normalize:
        np.matmul(rows, normalizer.swapaxes(-1, -2), out=block.weights)
        if block.causal:
            block.row_sums(block.pairs, block.sums)
            np.add(block.weights, block.sums, out=block.weights)
        return np.divide(given, block.weights, out=block.wide_cotangent)
    if block.scale is not None:
        return np.multiply(given, block.scale, out=block.wide_cotangent)
    return given


def _weight_cotangent(block: Adjoint, rows: Real, held: Real) -> None:
    """Compute the cotangent of the weights: what was read times that of reading it."""
    sums = block.weight_cotangent
    np.multiply(rows, held, out=block.spare)
    block.row_sums(block.spare, sums)
    if block.causal:
        np.multiply(block.pairs, block.pair_cotangent, out=block.shares)
        block.seen(block.shares)
        block.row_sums(block.shares, block.sums)
        np.add(sums, block.sums, out=sums)
    np.divide(sums, block.weights, out=sums)
    np.negative(sums, out=sums)


def _pair_cotangent(block: Adjoint) -> None:
    """Turn products of values and cotangents into the cotangent of all pairs."""
    cotangent = block.pair_cotangent
    if block.normalize:
        np.add(cotangent, block.weight_cotangent, out=cotangent)
    if block.decay is not None and block.pair_sums is not None:
        np.multiply(block.pairs, cotangent, out=block.pair_sums.pairs)
        np.multiply(cotangent, block.decay.between, out=cotangent)
    block.seen(cotangent)


def pull_keys(block: Adjoint, of: Tokens) -> None:
    """Write the gradients of keys, values and log-decays."""
    count, paired = block.shape.values, block.causal and "output" in of
    memory, normalizer = block.lost
    turned = block.turned[:, :, :count]
    _pull_values(block, memory, of["d_value"], paired=paired)
    np.copyto(turned, memory.swapaxes(-1, -2))
    found = np.matmul(block.values, turned, out=block.found)
    if block.normalize:
        np.copyto(block.turned[:, :, count:], normalizer.swapaxes(-1, -2))
        np.add(found, block.turned[:, :, count:], out=found)
    if block.decay is not None:
        np.multiply(found, block.decay.leaving.swapaxes(-1, -2), out=found)
        _pull_decays(block, of["d_log_decay"], paired=paired)
    if paired:
        cotangent = block.pair_cotangent.swapaxes(-1, -2)
        np.matmul(cotangent, block.queries, out=block.narrow)
        np.add(found, block.narrow, out=found)
    block.through_features(found, block.keys, block.shape.cut(of["d_key"]))


def _pull_values(block: Adjoint, memory: Real, output: Real, *, paired: bool) -> None:
    """Write the gradients of values: of the memory they are in, and of their pairs."""
    output = block.shape.cut(output)
    found = block.place(output, block.narrow_values)
    np.matmul(block.kept_keys, memory, out=found)
    if paired:
        pairs = block.pairs.swapaxes(-1, -2)
        np.matmul(pairs, block.reading, out=block.value_spare)
        np.add(found, block.value_spare, out=found)
    if found is not output:
        np.copyto(output, found, casting="unsafe")


def _pull_decays(block: Adjoint, output: Real, *, paired: bool) -> None:
    """Write the gradients of log-decays: all that they let through."""
    assert block.decay is not None
    assert block.pair_sums is not None
    sums = block.pair_sums
    if not paired:
        sums.pairs[...] = sums.entering[...] = 0
    np.multiply(block.keys, block.found, out=block.spare)
    block.row_sums(block.spare, sums.leaving[..., None])
    np.multiply(block.before, block.turned, out=block.products)
    heads, chunks = block.shape[:2]
    products = block.products.reshape(heads, chunks, 1, block.first.shape[-1])
    block.row_sums(products, sums.whole[..., None, None])
    np.multiply(sums.whole, block.decay.entering[:, :, -1, 0], out=sums.whole)
    sums.write(block.shape.cut(output))
