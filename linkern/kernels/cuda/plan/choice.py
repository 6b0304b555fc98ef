"""Choice of the tile shape of `chunk_fwd.cu`, by predicted cycles, and the reason."""

from typing import NamedTuple

from linkern.kernels.cuda.plan import cost
from linkern.kernels.cuda.plan.tiles import (
    MORE,
    Sizes,
    TileShape,
    padded_size,
    safe_shape,
    slices,
)

__all__ = ["Choice", "choose"]

# Another shape than the safe one must be predicted to take so much of its cycles at
# most: the model is off by some parts of a hundred.
_MARGIN = 0.9
# Segments have at least so many chunks, since the first launch reads inputs once more.
_MIN_CHUNKS = 4


class Choice(NamedTuple):
    """A tile shape, how heads are split, and why.

    Parameters
    ----------
    shape : TileShape
        Of the forward pass.
    segments : tuple of int
        Segments of a head, and tokens of all but the last.
    reason : str
        For people.
    prediction : Prediction or None
        None if the model does not cover the call.
    """

    shape: TileShape
    segments: tuple[int, int]
    reason: str
    prediction: cost.Prediction | None = None


def choose(sizes: Sizes, multiprocessors: int, shared: int) -> Choice | None:
    """Return the choice for a call; None if no shape fits.

    Parameters
    ----------
    sizes : Sizes
        Of the call.
    multiprocessors, shared : int
        Of the device; bytes of shared memory that a block may have.
    """
    safe = safe_shape(sizes, shared)
    if safe is None:
        return None
    blocks = sizes.heads * slices(sizes, safe)
    segments = _segments(sizes.tokens, safe.tokens, blocks, multiprocessors)
    if segments[0] > 1:
        return Choice(safe, segments, f"few heads: {segments[0]} segments of each")
    if multiprocessors not in cost.CARDS:
        known = ", ".join(map(str, cost.CARDS))
        reason = (
            f"the safe shape: a card of {multiprocessors} multiprocessors is unknown, "
            f"those of {known} are known"
        )
        return Choice(safe, segments, reason)
    options = {
        shape: prediction
        for shape in (safe, *_more(sizes, shared))
        if (prediction := cost.predicted(sizes, shape, multiprocessors, shared))
    }
    if len(options) < 2 or safe not in options:
        return Choice(safe, segments, "the only shape", options.get(safe))
    best = min(options, key=lambda shape: options[shape].cycles)
    if options[best].cycles > _MARGIN * options[safe].cycles:
        best = safe
    return Choice(best, (1, sizes.tokens), _reason(best, options), options[best])


def _more(sizes: Sizes, shared: int) -> list[TileShape]:
    """Return the further shapes for a call."""
    size = padded_size(sizes.features)
    shapes = [
        TileShape(size, *each) for each in MORE.get(sizes.itemsize, {}).get(size, [])
    ]
    return [
        x
        for x in shapes
        if sizes.values % x.columns == 0 and x.shared_bytes(sizes.itemsize) <= shared
    ]


def _reason(best: TileShape, options: dict[TileShape, cost.Prediction]) -> str:
    cycles = {shape: f"{x.cycles / 1e3:.0f}" for shape, x in options.items()}
    others = ", ".join(
        f"{number} ({shape.columns} columns, {shape.tokens} tokens, "
        f"{shape.warps} warps)"
        for shape, number in cycles.items()
        if shape != best
    )
    return f"{cycles[best]} thousand cycles predicted, beside {others}"


def _segments(
    tokens: int, chunk_tokens: int, blocks: int, multiprocessors: int
) -> tuple[int, int]:
    """Return the number of segments of a head, and the tokens of all but the last."""
    chunks = -(-tokens // chunk_tokens)
    # Segments read keys and values twice: not worth it on a device that is half full.
    if 2 * blocks > multiprocessors or chunks < 2 * _MIN_CHUNKS:
        return 1, tokens
    wanted = min(2 * multiprocessors // blocks, chunks // _MIN_CHUNKS)
    segment_chunks = -(-chunks // wanted)
    return -(-chunks // segment_chunks), segment_chunks * chunk_tokens
