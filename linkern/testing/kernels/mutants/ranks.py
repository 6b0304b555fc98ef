"""Defects of Mamba-3 with several inputs and outputs, whose ranks share a memory."""

import numpy as np

from linkern.testing.kernels.assembly import Array
from linkern.testing.kernels.correct.ranks import by_tokens
from linkern.testing.kernels.mutants.catalogue import enter

__all__: list[str] = []


def _in_turn(query: Array, memory: Array, writes: Array) -> Array:
    """Let each query see the writes of its rank and of those before it."""
    seen = memory[..., None, :, :] + np.cumsum(writes, axis=-3)
    return (query[..., None, :] @ seen)[..., 0, :]


def _interleaved_ranks(x: Array, rank: int) -> Array:
    """Take every R-th channel for a rank."""
    return x.reshape(*x.shape[:-1], x.shape[-1] // rank, rank).swapaxes(-1, -2)


def _of_first(mix: Array) -> Array:
    return np.broadcast_to(mix[..., :1, :], mix.shape)


enter(
    "ranks_read_in_turn",
    by_tokens(read=_in_turn),
    "#124: tilelang-ascend #1460: a mask of rows in place of one of tokens",
    op="mamba3_mimo",
)
enter(
    "decays_at_every_rank",
    by_tokens(decays=lambda rank: rank),
    "#66: fla 01f02517, #51: fla 769035e9: sizes of steps for those of tokens",
    op="mamba3_mimo",
)
enter(
    "ranks_of_every_other_channel",
    by_tokens(apart=_interleaved_ranks),
    "#134: transformers #41036: dimensions unpacked in the wrong order",
    op="mamba3_mimo",
)
enter(
    "mix_of_first_rank_for_all",
    by_tokens(value_ranks=_of_first),
    "#52: fla 59f3f67e: rates that are not repeated",
    op="mamba3_mimo",
)
enter(
    "last_value_kept_mixed",
    by_tokens(keeps=lambda value, mix: value * mix[..., 0, :]),
    "#90: fla cde25dfd: what one form does, and another does not",
    "state_split",
    "decoding",
    op="mamba3_mimo",
)
