"""Whole models that generate: the same width and depth, with and without a state."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern import transformer
from linkern.bench.generation.generator import Generator

__all__ = ["VOCABULARY", "whole_models"]

# Pixels: the models of the paper generate these.
VOCABULARY = 256


@dataclass
class _Session:
    """A model, its input tokens, and its state after some of them."""

    model: transformer.LanguageModel
    tokens: NDArray[np.int64]
    state: transformer.DecodingState | None = None


def whole_models(
    *, width: int = 256, depth: int = 4, heads: int = 8, seed: int = 0
) -> tuple[Generator, ...]:
    """Return the ways to generate with a whole model, float32, batch 1, on NumPy.

    Every model is `linkern.transformer` with random weights, and reads tokens that were
    drawn beforehand: sampling its own would cost all of them the same.

    Examples
    --------
    >>> [generator.name for generator in whole_models(width=8, depth=1, heads=2)]
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

    def start(operator: str, options: dict[str, Any], length: int) -> _Session:
        rng = np.random.default_rng(seed)
        tokens = rng.integers(0, VOCABULARY, size=(1, length))
        return _Session(model(operator, **options), tokens)

    def generator(
        name: str, summary: str, generate: Any, operator: str, **options: int
    ) -> Generator:
        recomputes = generate is _recompute
        return Generator(
            name,
            summary,
            tasks=("whole models",),
            start=partial(start, operator, options),
            generate=generate,
            held=_held_tokens if recomputes else _held,
            recomputes=recomputes,
            # One token of 16384 alone takes a minute and a half.
            longest=4096 if name == "model-recompute" else None,
        )

    linear, cached = partial(_decode, _same_state), partial(_decode, _filled_cache)
    return (
        generator("model-linear", "linear, as RNN", linear, "linear_attention"),
        generator("model-cache", "softmax, cached", cached, "softmax_attention"),
        generator(
            *("model-lsh", "LSH, 1 round, recomputed", _recompute, "lsh_attention"),
            rounds=1,
            chunk_size=32,
            rng=seed,
        ),
        generator(
            *("model-recompute", "softmax, recomputed", _recompute),
            "softmax_attention",
            block_size=512,
        ),
    )


def _decode(
    at: Callable[[transformer.DecodingState, int], transformer.DecodingState],
    session: _Session,
    start: int,
    stop: int,
) -> None:
    """Read tokens one by one, from the state after the ones before them."""
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


def _recompute(session: _Session, start: int, stop: int) -> None:
    """Run the model on all tokens so far, for every token."""
    for i in range(start, stop):
        transformer.language_model(session.model, session.tokens[:, : i + 1])


def _held(session: _Session) -> int:
    """Return the bytes of all arrays of the state."""
    if session.state is None:
        return 0
    arrays = transformer.named_arrays(session.state.layers)
    return sum(np.asarray(x).nbytes for x in arrays.values())


def _held_tokens(session: _Session) -> int:
    """Return the bytes of the tokens: nothing else is kept where all is recomputed."""
    return session.tokens.nbytes
