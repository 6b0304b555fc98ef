r"""Chunkwise forward for any terms: decays per channel, and erases in WY form.

A workspace holds a few chunks of a few heads. `chunk_state` computes what
`core.chunkwise` does before its loop over chunks, `state_passing` is that loop, and
`chunk_output` computes the output:

    (I + N) U = V - A' S,      O = Q' S + (q_i^T Gamma_ij k_j)_ij U,      S' + K'^T U

with the legend given there. Erases are negated, so that all products are added. Nothing
is allocated: inputs are copied into buffers, which end in zeros where recursive halving
needs a power of two of rows.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from linkern.core.recurrence import Terms
from linkern.core.triangular import power_of_two
from linkern.kernels.numpy.causal import all_finite, lower_product
from linkern.kernels.numpy.intra_chunk import (
    ChannelDecay,
    QueryRows,
    ScalarDecay,
    zeros_by_token,
)
from linkern.kernels.numpy.pair_decay import PairDecay
from linkern.kernels.numpy.triangular import Inverse
from linkern.kernels.numpy.types import Arrays, Real, Shape

__all__ = [
    "DeltaWorkspace",
    "Traits",
    "chunk_output",
    "chunk_state",
    "state_passing",
    "traits_of",
]


class Traits(NamedTuple):
    """Traits of the terms that a workspace depends on.

    Parameters
    ----------
    decays, channel_decay, erases : bool
        True if there are log-decays, if they are per key channel, if there are erases.
    early_erase, early_read, transpose_state : bool
        As in `Terms`.
    follows : bool
        True if the memory is a pair, whose first half follows the second.
    """

    decays: bool
    channel_decay: bool
    erases: bool
    early_erase: bool
    early_read: bool
    transpose_state: bool
    follows: bool = False


def traits_of(terms: Terms) -> Traits:
    """Return the traits of some terms."""
    follows = terms.follow is not None
    by_channel = terms.log_decay is not None and terms.log_decay.shape[-1] > 1
    return Traits(
        terms.log_decay is not None,
        by_channel and not follows,
        terms.erase is not None,
        terms.early_erase,
        terms.early_read,
        terms.transpose_state,
        follows,
    )


class _Step(NamedTuple):
    """Views of one chunk for the state passing; None if the terms lack the factor."""

    before: Real
    after: Real
    value: Real
    new_value: Real
    decayed_key_t: Real
    chunk_decay: Real | None
    gained: Real | None
    erase: Real | None
    inverse: Real | None


class DeltaWorkspace:
    """Buffers of a block; the first two axes of each are heads and chunks.

    Parameters
    ----------
    shape : Shape
        Sizes.
    dtype : dtype
        Dtype of the computation.
    traits : Traits
        Traits of the terms.
    keeps : bool
        True if what gradients need of the scores is kept.
    """

    def __init__(
        self, shape: Shape, dtype: Any, traits: Traits, *, keeps: bool = False
    ) -> None:
        self._keeps = keeps
        heads, chunks, size, features, values = shape
        self.shape, self.dtype, self.traits = shape, np.dtype(dtype), traits
        # States before and after the chunks are the same rows, shifted by one.
        states = np.empty((heads, chunks + 1, features * values), dtype)
        self.initial_state, self.final_state = states[:, 0], states[:, chunks]
        memories = states.reshape(heads, chunks + 1, features, values)
        self.memory_before, self.memory_after = memories[:, :-1], memories[:, 1:]
        rows = power_of_two(size) if traits.channel_decay else size
        keys = features // 2 if traits.follows else features
        self.key, self.value = self._rows(rows, keys), self._zeros(size, values)
        self.decay: ChannelDecay | ScalarDecay | PairDecay
        if traits.channel_decay:
            keeps_keys = traits.transpose_state or keeps
            self.decay = ChannelDecay(self.key, size, keeps_keys=keeps_keys)
        elif traits.follows:
            self.decay = PairDecay(self.key)
        else:
            self.decay = ScalarDecay(self.key, decays=traits.decays)
        self.new_value = self.value
        self.inverse: Inverse | None = None
        #: Scores of the erases, before the inverse takes their place.
        self.erase_scores: Real | None = None
        self._make_query_rows(rows)
        # Decays of NaN would spoil the rows behind the tokens for later blocks.
        padded = (self.key, *(x.rows for x in (self.scored, self.mixer) if x))
        self.padding = [x[..., size:, :] for x in padded if x.shape[-2] > size]
        width = features if traits.transpose_state else values
        self.output_buffer = self._zeros(size, width)
        self.state_output = self._zeros(size, values)
        self.residual = np.empty((heads, size, values), dtype)
        self.decayed_memory = np.empty((heads, features, values), dtype)
        self.finite = True  # keys and new values, as far as the final state tells
        self.steps = [self._step(i) for i in range(chunks)]

    def _zeros(self, *axes: int) -> Real:
        return np.zeros((self.shape.heads, self.shape.chunks, *axes), self.dtype)

    def _rows(self, *axes: int) -> Real:
        """Return zeros for rows of keys, in the memory layout that the decay needs."""
        if not self.traits.channel_decay:
            return self._zeros(*axes)
        heads, chunks = self.shape.heads, self.shape.chunks
        return zeros_by_token(heads, chunks, *axes, dtype=self.dtype)

    def _make_query_rows(self, rows: int) -> None:
        """Allocate the rows that are scored against keys: erases, queries, or both.

        With `transpose_state`, queries are scored against values, and `mixer` has the
        rows that those scores weigh.
        """
        traits, size = self.traits, self.shape.size
        erase = [(traits.early_erase, True)] if traits.erases else []
        query = (traits.early_read, traits.early_read)
        if traits.transpose_state:
            self.scored = self._query_rows(rows, erase) if erase else None
            self.mixer = self._query_rows(rows, [query])
            self.query = self._zeros(size, self.shape.values)
        else:
            self.scored = self.mixer = self._query_rows(rows, [*erase, query])
            self.query = self.mixer.rows[:, :, -1]
        self.mixer_rows = self.mixer.reading[:, :, -1, :size]
        self.scores = self.mixer.scores[:, :, -1, :size, :size]
        if self.scored is not None and traits.erases:
            self.erase = self.scored.rows[:, :, 0]
            self.erase_rows = self.scored.reading[:, :, 0, :size]
            self.inverse_matrix = self.scored.scores[:, :, 0]
            self.inverse = Inverse(self.inverse_matrix)
            if self._keeps and traits.decays and not traits.channel_decay:
                self.erase_scores = np.empty_like(self.inverse_matrix)
            self.new_value = self._zeros(size, self.shape.values)

    def _query_rows(self, rows: int, kinds: Sequence[tuple[bool, bool]]) -> QueryRows:
        square = power_of_two(rows) if self.traits.erases else rows
        # All kinds of rows of a token are adjacent.
        scores = self._zeros(square, len(kinds), square).swapaxes(2, 3)
        if not self.traits.channel_decay:
            scores = self._zeros(len(kinds), square, square)
        return QueryRows(
            self._rows(len(kinds), rows, self.key.shape[-1]),
            scores,
            early=[early for early, _ in kinds],
            strict=[strict for _, strict in kinds],
            by_halves=self.traits.channel_decay,
            keeps_rows=self._keeps,
            pair_rows=self._zeros(len(kinds), rows, self.shape.features)
            if self.traits.follows
            else None,
        )

    def _step(self, i: int) -> _Step:
        size, chunk_decay = self.shape.size, self.decay.chunk_decay
        erases = self.traits.erases
        gained = self.decay.gained if isinstance(self.decay, PairDecay) else None
        return _Step(
            self.memory_before[:, i],
            self.memory_after[:, i],
            self.value[:, i],
            self.new_value[:, i],
            self.decay.decayed_key_t[:, i],
            None if chunk_decay is None else chunk_decay[:, i],
            None if gained is None else gained[:, i],
            self.erase_rows[:, i] if erases else None,
            self.inverse_matrix[:, i, :size, :size] if erases else None,
        )

    def release(self) -> None:
        """Keep no reference to a caller's arrays: all of them are copied."""

    def load(self, rows: Real, buffer: Real) -> None:
        """Copy rows of tokens into a buffer."""
        target = buffer[..., : self.shape.size, :]
        np.copyto(target, self.shape.split_chunks(rows), casting="unsafe")


def chunk_state(workspace: DeltaWorkspace, tokens: Arrays) -> None:
    """Load a block, and compute its scores and all else that needs no state."""
    ws = workspace
    _load(ws, tokens)
    if ws.inverse is None:
        np.matmul(ws.decay.decayed_key_t, ws.value, out=ws.memory_after)
        return
    if ws.erase_scores is not None:
        np.copyto(ws.erase_scores, ws.inverse_matrix)
    ws.inverse.solve()
    if not ws.inverse.is_finite:
        _load(ws, tokens)
        ws.inverse.solve(finite=False)


def _load(ws: DeltaWorkspace, tokens: Arrays) -> None:
    """Load a block, and compute its scores."""
    for rows in ws.padding:
        rows[...] = 0
    ws.load(tokens["key"], ws.key)
    ws.load(tokens["value"], ws.value)
    ws.load(tokens["query"], ws.query)
    if ws.inverse is not None:
        ws.load(tokens["erase"], ws.erase)
        np.negative(ws.erase, out=ws.erase)
    if isinstance(ws.decay, PairDecay):
        ws.load(tokens["follow"], ws.decay.follow)
    has_decay = ws.traits.decays
    ws.decay.load(ws.shape.split_chunks(tokens["log_decay"]) if has_decay else None)
    ws.decay.score(ws.scored)


def state_passing(workspace: DeltaWorkspace) -> None:
    """Compute the new values of each chunk and the state after it, in order."""
    ws = workspace
    _pass_state(ws, finite=True)
    ws.finite = all_finite(ws.final_state)
    if ws.inverse is not None and not ws.finite:
        _pass_state(ws, finite=False)


def _pass_state(ws: DeltaWorkspace, *, finite: bool) -> None:
    for step in ws.steps:
        before, after, value, new_value, key_t, chunk_decay = step[:6]
        gained, erase, inverse = step[6:]
        if erase is not None and inverse is not None:
            np.matmul(erase, before, out=ws.residual)
            np.add(value, ws.residual, out=ws.residual)
            lower_product(inverse, ws.residual, out=new_value, finite=finite)
            np.matmul(key_t, new_value, out=after)
        if gained is not None:
            _carry_pair(ws, step)
            continue
        decayed = before
        if chunk_decay is not None:
            decayed = np.multiply(before, chunk_decay, out=ws.decayed_memory)
        np.add(decayed, after, out=after)


def _carry_pair(ws: DeltaWorkspace, step: _Step) -> None:
    """Add what is left of both memories, and what the first gains of the second."""
    assert step.chunk_decay is not None
    assert step.gained is not None
    lead = step.before.shape[0], 2
    before, after, kept = (
        x.reshape(*lead, -1, copy=False)
        for x in (step.before, step.after, ws.decayed_memory)
    )
    np.add(after, np.multiply(before, step.chunk_decay, out=kept), out=after)
    gained = np.multiply(before[:, 1:], step.gained, out=kept[:, 1:])
    np.add(after[:, :1], gained, out=after[:, :1])


def chunk_output(workspace: DeltaWorkspace, tokens: Arrays) -> None:
    """Write the output: intra-chunk attention plus the state before the chunk."""
    ws = workspace
    output = ws.shape.split_chunks(tokens["output"])
    result = output if output.dtype == ws.dtype else ws.output_buffer
    if ws.traits.transpose_state:
        assert not isinstance(ws.decay, PairDecay)
        np.matmul(ws.query, ws.new_value.swapaxes(-1, -2), out=ws.scores)
        np.matmul(ws.query, ws.memory_before.swapaxes(-1, -2), out=ws.mixer_rows)
        ws.decay.mix_keys(ws.mixer, result, finite=ws.finite)
    else:
        strict = ws.traits.early_read
        lower_product(
            ws.scores, ws.new_value, out=result, finite=ws.finite, strict=strict
        )
        np.matmul(ws.mixer_rows, ws.memory_before, out=ws.state_output)
        np.add(result, ws.state_output, out=result)
    if result is not output:
        np.copyto(output, result, casting="unsafe")
