"""Checks of the chunks of Dask arrays: all are made before anything is computed."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = [
    "chunks_alike",
    "known_chunks",
    "one_chunk",
    "scan_of_blocks",
    "token_by_token",
    "token_chunks",
    "whole_sequence",
]

Chunks = tuple[int, ...]


def known_chunks(name: str, shape: Sequence[Any]) -> None:
    """Refuse an array whose shape is unknown until it is computed."""
    if any(math.isnan(size) for size in shape):
        msg = (
            f"`{name}` must have chunks of known sizes, got shape {tuple(shape)}; call "
            f"`{name}.compute_chunk_sizes()` first."
        )
        raise ValueError(msg)


def token_chunks(name: str, chunks: Chunks) -> None:
    """Refuse a chunk without tokens, unless there is no token at all."""
    if 0 in chunks and len(chunks) > 1:
        msg = (
            f"`{name}` must have chunks of at least one token (axis -2), got {chunks}; "
            f"rechunk it."
        )
        raise ValueError(msg)


def one_chunk(name: str, axis: int, chunks: Chunks) -> None:
    """Refuse a dimension of keys or values that is divided into chunks."""
    if len(chunks) > 1:
        msg = (
            f"`{name}` must have one chunk along axis {axis}, got {chunks}; call "
            f"`{name}.rechunk({{{axis}: -1}})`."
        )
        raise ValueError(msg)


def chunks_alike(
    name: str, axis: int, chunks: Chunks, other: str, expected: Chunks
) -> None:
    """Refuse chunks that are not those of another input."""
    if chunks != expected:
        msg = (
            f"`{name}` must have the chunks {expected} along axis {axis}, which fit "
            f"those of {other}, got {chunks}; call "
            f"`{name}.rechunk({{{axis}: {expected}}})`."
        )
        raise ValueError(msg)


def whole_sequence(options: Mapping[str, Any]) -> None:
    """Refuse options that need all tokens at once."""
    if options.get("cu_seqlens") is not None:
        msg = (
            "`cu_seqlens` must be None for Dask arrays, whose chunks have no regard to "
            "offsets; call once for each sequence."
        )
        raise ValueError(msg)
    if options.get("causal", True) is False:
        msg = (
            "`causal` must be True for Dask arrays: without an order, each query needs "
            "the keys of all chunks."
        )
        raise ValueError(msg)


def scan_of_blocks(kind: Any, operator: str, *, affine: bool) -> bool:
    """Return True for a scan over maps of blocks; it needs affine ones."""
    if kind not in ("chain", "blelloch"):
        msg = f'`linkern.scan` must be "chain" or "blelloch", got {kind!r}.'
        raise ValueError(msg)
    if kind == "blelloch" and not affine:
        msg = (
            f'`linkern.scan` must be "chain" for {operator}, got {kind!r}: the state '
            "after a block is not an affine function of the one before it."
        )
        raise ValueError(msg)
    return bool(kind == "blelloch")


def token_by_token(holds: bool) -> None:
    """Refuse a feature map that would need to know where a block begins."""
    if not holds:
        msg = (
            "`feature_map` must map each token alone for Dask arrays, got one that "
            "depends on positions or on other tokens; apply it to `query` and `key`, "
            "and pass `linkern.feature_maps.identity`."
        )
        raise ValueError(msg)
