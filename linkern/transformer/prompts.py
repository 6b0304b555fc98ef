"""Inputs of decoding: prompts, and the source of an encoder-decoder."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.array import device_of, is_array, namespace
from linkern.transformer.models import (
    LanguageModel,
    Model,
    encode,
    generating_part,
    sequences,
)
from linkern.transformer.states import DecodingState
from linkern.typing import Array

__all__ = ["prompt_rows", "source_memory"]


def prompt_rows(parameters: Model, prompts: Any) -> list[Array]:
    """Return each prompt as an array ``(T,)`` of the library of the model."""
    embedding, _ = generating_part(parameters)
    table = embedding.tokens
    rows: Iterable[Any] = prompts
    if is_array(prompts):
        if prompts.ndim != 2:
            msg = f"`prompts` must have shape (N, T), got {tuple(prompts.shape)}."
            raise ValueError(msg)
        rows = [prompts[n, :] for n in range(prompts.shape[0])]
    elif not isinstance(prompts, Sequence) or isinstance(prompts, str):
        msg = (
            "`prompts` must be an integer array (N, T) or a sequence of sequences of "
            f"integers, got {type(prompts).__name__}."
        )
        raise TypeError(msg)
    tokens = [_prompt(n, row, like=table) for n, row in enumerate(rows)]
    if not tokens:
        msg = "`prompts` must hold at least one prompt, got none."
        raise ValueError(msg)
    return tokens


def _prompt(n: int, row: Any, *, like: Array) -> Array:
    """Return one prompt as an array ``(T,)``."""
    made = row
    if not is_array(row):
        integers = _integers(row)
        if integers is None:
            msg = (
                f"`prompts[{n}]` must be a sequence of integers, got {row!r}; one "
                "prompt alone is [[1, 2, 3]]."
            )
            raise TypeError(msg)
        made = namespace(like).asarray(integers, device=device_of(like))
    if made.ndim != 1:
        msg = f"`prompts[{n}]` must have shape (T,), got {tuple(made.shape)}."
        raise ValueError(msg)
    if made.shape[0] == 0:
        msg = (
            f"`prompts[{n}]` must have at least one token, got none; begin with a "
            "start token."
        )
        raise ValueError(msg)
    return made  # type: ignore[no-any-return]


def _integers(row: Any) -> NDArray[np.int64] | None:
    """Return a sequence of integers as an array; None if it is no such sequence."""
    if isinstance(row, np.ndarray):  # a masked one, or a matrix
        return None
    try:
        numbers = np.asarray(row)
    except ValueError:  # sequences of different lengths inside
        return None
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        return None
    return numbers.astype(np.int64)


def source_memory(
    parameters: Model,
    source: Array | None,
    visible: Array | None,
    state: DecodingState | None,
    count: int,
    form: str,
) -> Array | None:
    """Return the encoder output that decoding of `count` prompts attends to."""
    if isinstance(parameters, LanguageModel) or state is not None:
        if source is not None:
            msg = (
                "`source` must be None for a model without an encoder, and where "
                "`state` has read it already."
            )
            raise ValueError(msg)
        return None
    if source is None:
        msg = (
            "`source` must be an integer array (N, S) for an encoder-decoder, got None."
        )
        raise ValueError(msg)
    sequences("source", source)
    if source.shape[0] != count:
        msg = (
            f"`source` must have a row for each of the {count} prompts, got "
            f"{source.shape[0]}."
        )
        raise ValueError(msg)
    return encode(parameters, source, visible=visible, form=form)
