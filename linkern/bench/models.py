"""Whole models generating: the same width and depth, four ways to know the past."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern import transformer
from linkern.bench.generation import Contestant

__all__ = ["BASELINE", "VOCABULARY", "whole_models"]

BASELINE = "model-linear"
# Pixels: what the paper's models generate.
VOCABULARY = 256


@dataclass
class _Session:
    """A model, the tokens that it is given, and its state after some of them."""

    model: transformer.LanguageModel
    tokens: NDArray[np.int64]
    state: transformer.DecodingState | None = None


def whole_models(
    *, width: int = 256, depth: int = 4, heads: int = 8, seed: int = 0
) -> tuple[Contestant, ...]:
    """Return the ways to generate with a whole model, float32, batch 1, on NumPy.

    Every model is `linkern.transformer`, with random weights, and is given tokens that
    were drawn beforehand: what it would have drawn costs all of them the same.

    Parameters
    ----------
    width, depth, heads : int
        Of every model.
    seed : int
        Of weights and tokens.

    Returns
    -------
    tuple of Contestant
        ``model-linear`` first, which others are compared with.

    Examples
    --------
    >>> [contestant.name for contestant in whole_models(width=8, depth=1, heads=2)]
    ['model-linear', 'model-cache', 'model-lsh', 'model-recompute']
    """

    @cache
    def model(operator: str, **options: Any) -> transformer.LanguageModel:
        return transformer.LanguageModel.create(
            VOCABULARY,
            width,
            depth,
            heads,
            operator=operator,
            options=options,
            rng=seed,
        )

    def starting(operator: str, **options: Any) -> Callable[[int], _Session]:
        def prepare(length: int) -> _Session:
            rng = np.random.default_rng(seed)
            tokens = rng.integers(0, VOCABULARY, size=(1, length))
            return _Session(model(operator, **options), tokens)

        return prepare

    return (
        Contestant(
            BASELINE,
            "linear, as RNN",
            starting("linear_attention"),
            partial(_generate_decoding, _same_state),
            _held,
        ),
        Contestant(
            "model-cache",
            "softmax, cached",
            starting("softmax_attention"),
            partial(_generate_decoding, _filled_cache),
            _held,
        ),
        Contestant(
            "model-lsh",
            "LSH, 1 round, recomputed",
            starting("lsh_attention", rounds=1, chunk_size=32, rng=seed),
            _generate_again,
            _kept_tokens,
            recomputes=True,
        ),
        Contestant(
            "model-recompute",
            "softmax, recomputed",
            starting("softmax_attention", block_size=512),
            _generate_again,
            _kept_tokens,
            recomputes=True,
            longest=4096,  # one token of 16384 alone takes a minute and a half
        ),
    )


def _generate_decoding(
    at: Callable[[transformer.DecodingState, int], transformer.DecodingState],
    session: _Session,
    start: int,
    stop: int,
) -> None:
    """Read tokens one by one, from the state that the ones before them left."""
    model, tokens = session.model, session.tokens
    if session.state is None or int(session.state.position[0]) != start:
        _, first = transformer.prefill(model, tokens[:, :1])
        session.state, start = at(first, max(start, 1)), max(start, 1)
    for i in range(start, stop):
        _, session.state = transformer.decode(model, session.state, tokens[:, i])


def _same_state(
    state: transformer.DecodingState, position: int
) -> transformer.DecodingState:
    """Return the state after one token: after thousands it is as large."""
    return replace(state, position=state.position * 0 + position)


def _filled_cache(
    state: transformer.DecodingState, position: int
) -> transformer.DecodingState:
    """Return a cache of as many tokens, with the first one's keys and values."""

    def filled(layer: transformer.LayerState) -> transformer.LayerState:
        cache = layer.attention
        key, value = (
            np.repeat(x[..., :1, :], position, axis=-2)
            for x in (cache.key, cache.value)
        )
        return transformer.LayerState(transformer.Cache.of(key, value))

    return replace(
        state,
        layers=tuple(filled(layer) for layer in state.layers),
        position=state.position * 0 + position,
    )


def _generate_again(session: _Session, start: int, stop: int) -> None:
    """Run the model on everything so far, for every token."""
    for i in range(start, stop):
        transformer.language_model(session.model, session.tokens[:, : i + 1])


def _held(session: _Session) -> int:
    """Return the bytes of all arrays of the state."""
    if session.state is None:
        return 0
    arrays = transformer.named_arrays(session.state.layers)
    return sum(np.asarray(x).nbytes for x in arrays.values())


def _kept_tokens(session: _Session) -> int:
    """Return the bytes of the tokens, all that is left where everything is redone."""
    return session.tokens.nbytes
