"""Attention alone in PyTorch, by its own fused kernel: the peer to be measured beside.

PyTorch is imported when a session is prepared, and not before.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

from linkern.bench.generation import Contestant

__all__ = ["contestants"]


@dataclass(frozen=True)
class _Session:
    """Tensors ``(1, heads, T, dim)``, what is kept, and where outputs go."""

    inputs: tuple[Any, Any, Any]
    kept: tuple[Any, ...]
    output: Any


def contestants(starting: Callable[..., Any]) -> tuple[Contestant, ...]:
    """Return the contestants.

    Parameters
    ----------
    starting : callable
        From a function of tokens to one of a length.

    Returns
    -------
    tuple of Contestant
        With a preallocated cache, and recomputing.
    """
    return (
        Contestant(
            "torch-cache",
            "softmax cached, torch",
            starting(_cached),
            _generate_cached,
            _held,
            traced=False,
        ),
        Contestant(
            "torch-recompute",
            "softmax recomputed, torch",
            starting(_recomputed),
            _generate_recomputed,
            _held,
            recomputes=True,
            traced=False,
        ),
    )


def _torch() -> Any:
    return import_module("torch")


def _attention() -> Callable[..., Any]:
    found = import_module("torch.nn.functional").scaled_dot_product_attention
    return cast(Callable[..., Any], found)


def _held(session: _Session) -> int:
    return sum(x.numel() * x.element_size() for x in session.kept)


def _inputs(tokens: Any) -> tuple[Any, Any, Any]:
    query, key, value = (_torch().asarray(x)[None] for x in tokens.by_heads())
    return query, key, value


def _recomputed(tokens: Any) -> _Session:
    inputs = _inputs(tokens)
    return _Session(inputs, inputs, _torch().asarray(tokens.output))


def _generate_recomputed(session: _Session, start: int, stop: int) -> None:
    attend = _attention()
    with _torch().inference_mode():
        for i in range(start, stop):
            query, key, value = (x[:, :, : i + 1] for x in session.inputs)
            rows = attend(query, key, value, is_causal=True)
            session.output[i] = rows[0, :, -1]


def _cached(tokens: Any) -> _Session:
    inputs = _inputs(tokens)
    cache = tuple(_torch().zeros_like(x) for x in inputs[1:])
    return _Session(inputs, cache, _torch().asarray(tokens.output))


def _generate_cached(session: _Session, start: int, stop: int) -> None:
    (query, key, value), (keys, values) = session.inputs, session.kept
    output = session.output
    attend = _attention()
    with _torch().inference_mode():
        for i in range(start, stop):
            keys[:, :, i] = key[:, :, i]
            values[:, :, i] = value[:, :, i]
            row = attend(
                query[:, :, i : i + 1], keys[:, :, : i + 1], values[:, :, : i + 1]
            )
            output[i] = row[0, :, 0]
