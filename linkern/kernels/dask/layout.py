"""Layout of a call: which blocks of which array meet, and the checks of their chunks.

A lane is the block of heads that one chain of tasks works on: an index for each leading
axis. The blocks of a lane follow each other along the tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from linkern import validate

__all__ = ["Chunks", "Key", "Lane", "Layout", "layout"]

Chunks = tuple[int, ...]
Lane = tuple[int, ...]
Key = tuple[Any, ...]

_PER_TOKEN = ("t", "s")


@dataclass(frozen=True)
class Layout:
    """Chunks of a call.

    Parameters
    ----------
    lead : tuple of chunks
        Chunks along the leading axes of the output.
    tokens : chunks
        Chunks along the tokens.
    """

    lead: tuple[Chunks, ...]
    tokens: Chunks

    def lanes(self) -> Iterator[Lane]:
        """Yield the index of each block of heads."""
        yield from product(*(range(len(chunks)) for chunks in self.lead))

    def starts(self) -> list[int]:
        """Return the first token of each block."""
        return [sum(self.tokens[:n]) for n in range(len(self.tokens))]

    def key(self, x: Any, letters: str, lane: Lane, n: int) -> Key:
        """Return the key of the block of an array for a lane and its n-th span.

        `letters` are those of the last axes of the array.
        """
        core = (n if letter in _PER_TOKEN else 0 for letter in letters)
        return (x.name, *self.own(x.chunks, len(letters), lane), *core)

    def own(self, chunks: Sequence[Chunks], core: int, lane: Lane) -> Lane:
        """Return where a lane is along the leading axes of an array.

        An axis of one entry serves all lanes.
        """
        lead = chunks[: len(chunks) - core]
        at = lane[len(lane) - len(lead) :]
        return tuple(i if len(own) > 1 else 0 for i, own in zip(at, lead, strict=True))

    def leads(self, chunks: Sequence[Chunks], core: int, lane: Lane) -> bool:
        """Return True for the first of the lanes that share a block of an array."""
        own = self.own(chunks, core, lane)
        return lane == (0,) * (len(lane) - len(own)) + own

    def of_shape(self, shape: Sequence[int]) -> tuple[Chunks, ...]:
        """Return the chunks of leading axes, some of which may be single entries."""
        lead = self.lead[len(self.lead) - len(shape) :]
        return tuple(
            (size,) if size != sum(chunks) else chunks
            for size, chunks in zip(shape, lead, strict=True)
        )


def layout(
    inputs: Mapping[str, Any], axes: Mapping[str, str], lead: Sequence[int]
) -> Layout:
    """Return the layout of a call, after checking that all chunks fit.

    Parameters
    ----------
    inputs : mapping of str to dask.array.Array
        Inputs of the operator; their shapes have been checked.
    axes : mapping of str to str
        Letters of their last axes; nothing for a state.
    lead : sequence of int
        Leading axes of the output.
    """
    tokens, first = _tokens(inputs, axes)
    steps = {"t": 1, "s": 1}
    for name, x in inputs.items():
        if axes[name][:1] == "s":
            steps["s"] = x.shape[-len(axes[name])] // max(sum(tokens), 1)
    for name, x in inputs.items():
        letters = axes[name]
        for i, letter in enumerate(letters):
            axis = i - len(letters)
            chunks = x.chunks[axis]
            if letter in _PER_TOKEN:
                expected = tuple(n * steps[letter] for n in tokens)
                validate.chunks_alike(name, axis, chunks, f"`{first}`", expected)
            else:
                validate.one_chunk(name, axis, chunks)
    return Layout(_lead(inputs, axes, lead), tokens)


def _tokens(inputs: Mapping[str, Any], axes: Mapping[str, str]) -> tuple[Chunks, str]:
    """Return the chunks of tokens, and the input that they are those of."""
    for name, x in inputs.items():
        if axes[name][:1] == "t":
            chunks = x.chunks[-len(axes[name])]
            validate.token_chunks(name, chunks)
            return chunks, name
    raise AssertionError


def _lead(
    inputs: Mapping[str, Any], axes: Mapping[str, str], lead: Sequence[int]
) -> tuple[Chunks, ...]:
    """Return the chunks along the leading axes; those of all inputs must fit."""
    return tuple(
        _of_axis(inputs, axes, len(lead) - i, size) for i, size in enumerate(lead)
    )


def _of_axis(
    inputs: Mapping[str, Any], axes: Mapping[str, str], back: int, size: int
) -> Chunks:
    """Return the chunks along the leading axis that is `back` before the last axes."""
    axis_of = {name: -back - len(axes[name]) for name in inputs}
    having = {name: x for name, x in inputs.items() if x.ndim >= -axis_of[name]}
    first = next(n for n, x in having.items() if x.shape[axis_of[n]] == size)
    chunks: Chunks = inputs[first].chunks[axis_of[first]]
    for name, x in having.items():
        axis = axis_of[name]
        few = x.shape[axis]
        if few == size:
            validate.chunks_alike(name, axis, x.chunks[axis], f"`{first}`", chunks)
        elif few > 1:  # heads that several value heads share
            if any(n * few % size for n in chunks):
                validate.one_chunk(first, axis_of[first], chunks)
            expected = tuple(n * few // size for n in chunks)
            validate.chunks_alike(name, axis, x.chunks[axis], f"`{first}`", expected)
    return chunks
