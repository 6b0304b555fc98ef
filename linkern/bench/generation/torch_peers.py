"""One layer of softmax attention that generates, by PyTorch's fused kernel.

PyTorch is imported when a session starts, and not before.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from linkern.bench.generation.generator import Generator

__all__ = ["generators"]


@dataclass(frozen=True)
class _Session:
    """Tensors ``(1, heads, T, dim)``, the cache, and the array that outputs go to."""

    inputs: tuple[Any, Any, Any]
    cache: tuple[Any, ...]
    output: Any


def generators(
    starting: Callable[..., Any], tasks: tuple[str, ...]
) -> tuple[Generator, ...]:
    """Return the generators with a preallocated cache, and without a cache."""
    return (
        Generator(
            *("torch-cache", "softmax cached, torch"),
            tasks=tasks,
            start=starting(_cached),
            generate=_generate_cached,
            held=_held,
            traced=False,
        ),
        Generator(
            *("torch-recompute", "softmax recomputed, torch"),
            tasks=tasks,
            start=starting(_recomputed),
            generate=_generate_recomputed,
            held=_held,
            recomputes=True,
            traced=False,
        ),
    )


def _attention() -> Any:
    return import_module("torch.nn.functional").scaled_dot_product_attention


def _held(session: _Session) -> int:
    return sum(x.numel() * x.element_size() for x in session.cache)


def _recomputed(tokens: Any) -> _Session:
    torch = import_module("torch")
    query, key, value = (torch.asarray(x)[None] for x in tokens.by_heads())
    inputs = (query, key, value)
    return _Session(inputs, inputs, torch.asarray(tokens.output))


def _generate_recomputed(session: _Session, start: int, stop: int) -> None:
    attend = _attention()
    with import_module("torch").inference_mode():
        for i in range(start, stop):
            query, key, value = (x[:, :, : i + 1] for x in session.inputs)
            rows = attend(query, key, value, is_causal=True)
            session.output[i] = rows[0, :, -1]


def _cached(tokens: Any) -> _Session:
    plain, zeros = _recomputed(tokens), import_module("torch").zeros_like
    return _Session(plain.inputs, tuple(map(zeros, plain.inputs[1:])), plain.output)


def _generate_cached(session: _Session, start: int, stop: int) -> None:
    (query, key, value), (keys, values) = session.inputs, session.cache
    output, attend = session.output, _attention()
    with import_module("torch").inference_mode():
        for i in range(start, stop):
            keys[:, :, i] = key[:, :, i]
            values[:, :, i] = value[:, :, i]
            row = attend(
                query[:, :, i : i + 1], keys[:, :, : i + 1], values[:, :, : i + 1]
            )
            output[i] = row[0, :, 0]
