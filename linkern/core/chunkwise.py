r"""The equation over whole chunks of tokens: what each token writes, in closed form.

With ``Gamma`` the decays between tokens (`linkern.core.decay`), a chunk that is entered
with memory ``S`` writes the rows ``U`` that solve

    (I + N) U = V - A' S,      N_ij = a_i^T Gamma_ij k_j  for j < i,

reads ``Q' S + (q_i^T Gamma_ij k_j)_ij U``, and leaves ``S' + K'^T U`` behind. A prime
says how much of a row has come from, or is left at, the edge of the chunk. Without an
erase, ``N`` is zero and ``U = V``. Only the memory goes from chunk to chunk: the rest
is computed for several at once, along an axis of chunks.

Source: the triangular system is the WY form of Bischof and Van Loan 1987, as used for
the delta rule by Yang et al. 2024, "Parallelizing Linear Transformers with the Delta
Rule over Sequence Length".
"""

from linkern.array import concat, mT, reshape, zeros
from linkern.core.causal import lower_product
from linkern.core.decay import Decay
from linkern.core.momentum import PairDecay
from linkern.core.recurrence import Terms
from linkern.core.triangular import inverse, power_of_two
from linkern.typing import Array

__all__ = ["attend", "chunks", "write"]


def chunks(memory: Array, terms: Terms, size: int) -> tuple[Array, Array]:
    """Read and update the memory for chunks of `size` tokens, quadratic in that."""
    length = terms.key.shape[-2]
    terms = _in_chunks(terms, size)
    decay: Decay | PairDecay
    if terms.follow is None:
        decay = Decay(terms.log_decay)
    else:
        decay = PairDecay(terms.log_decay, terms.follow)
    before, written, memory = _walk(memory, terms, decay)
    output = _read(before, written, terms, decay)
    *lead, n, rows, dim = output.shape
    # Each chunk may end in padding, to a power of two; the last one may be shorter.
    kept = reshape(output[..., : min(size, rows), :], (*lead, n * min(size, rows), dim))
    return kept[..., :length, :], memory


def _walk(
    memory: Array, terms: Terms, decay: Decay | PairDecay
) -> tuple[Array, Array, Array]:
    """Return the memories before the chunks, what these write, and the last memory."""
    solving = erasing = None
    if terms.erase is not None:
        early = terms.early_erase
        erasing = decay.entering(terms.erase, early=early)
        solving = inverse(
            decay.scores(terms.erase, terms.key, strict=True, early=early)
        )
    keys, remaining = mT(decay.leaving(terms.key)), decay.whole()
    before, written = [], []
    for i in range(terms.key.shape[-3]):
        values = terms.value[..., i, :, :]
        if erasing is not None and solving is not None:
            values = values - erasing[..., i, :, :] @ memory
            values = lower_product(solving[..., i, :, :], values)
        before.append(memory)
        written.append(values)
        here = None if remaining is None else remaining[..., i, :, :]
        memory = decay.through(here, memory) + keys[..., i, :, :] @ values
    return _stacked(before), _stacked(written), memory


def _read(
    before: Array, written: Array, terms: Terms, decay: Decay | PairDecay
) -> Array:
    """Return what each token finds in the memory before its chunk, and in the chunk."""
    if terms.transpose_state:
        assert isinstance(decay, Decay)
        pairs = Decay(None).scores(terms.query, written)
        held = decay.entering(terms.query @ mT(before))
        return held + decay.mixed(pairs, terms.key)
    early = terms.early_read
    pairs = decay.scores(terms.query, terms.key, strict=early, early=early)
    held = decay.entering(terms.query, early=early) @ before
    return held + lower_product(pairs, written, strict=early)


def _in_chunks(terms: Terms, size: int) -> Terms:
    """Cut ``(..., T, D)`` into ``(..., n, C, D)``; a power of two where halves need it.

    What is missing is filled with tokens that write nothing and decay nothing.
    """
    length = terms.key.shape[-2]
    size = max(min(size, length), 1)
    n = max(-(-length // size), 1)
    per_channel = terms.log_decay is not None and terms.log_decay.shape[-1] > 1
    by_halves = per_channel or terms.erase is not None
    rows = power_of_two(size) if by_halves else size

    def cut(x: Array) -> Array:
        chunked = _filled(x, n * size)
        chunked = reshape(chunked, (*x.shape[:-2], n, size, x.shape[-1]))
        return _filled(chunked, rows)

    return terms.mapped(cut)


def _filled(x: Array, rows: int) -> Array:
    """Append zeros along the tokens."""
    missing = rows - x.shape[-2]
    if not missing:
        return x
    nothing = zeros((*x.shape[:-2], missing, x.shape[-1]), like=x)
    return concat([x, nothing], axis=-2)


def _stacked(arrays: list[Array]) -> Array:
    """Stack along the axis of chunks."""
    return concat([x[..., None, :, :] for x in arrays], axis=-3)


def write(memory: Array, key: Array, value: Array) -> Array:
    """Return ``S + sum_j k_j v_j^T``: a span without decay or erase."""
    return memory + mT(key) @ value


def attend(memory: Array, query: Array, key: Array, value: Array) -> Array:
    """Return ``q_i^T (S + sum_j k_j v_j^T)``: every query sees every key."""
    return query @ memory + (query @ mT(key)) @ value
