"""One layer of attention that generates: linear, softmax with a cache, recomputed.

The inputs of all tokens are drawn beforehand and the same for all; there is no model
around the layer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.attention import softmax_attention
from linkern.bench.generation import torch_peers
from linkern.bench.generation.generator import Generator
from linkern.decoding import Decoder

__all__ = ["Tokens", "attention_alone"]

Real = NDArray[Any]


@dataclass(frozen=True)
class Tokens:
    """Inputs of one layer, ``(T, heads, dim)``, and the array that outputs go to."""

    query: Real
    key: Real
    value: Real
    output: Real

    @classmethod
    def drawn(cls, length: int, heads: int, dim: int, seed: int) -> "Tokens":
        """Return independent standard normal float32 tokens."""
        rng = np.random.default_rng(seed)
        inputs = rng.standard_normal((3, length, heads, dim), dtype=np.float32)
        output = np.zeros((length, heads, dim), np.float32)
        return cls(inputs[0], inputs[1], inputs[2], output)

    def by_heads(self) -> tuple[Real, Real, Real]:
        """Return the inputs as ``(heads, T, dim)``, contiguous."""
        inputs = (self.query, self.key, self.value)
        query, key, value = (np.ascontiguousarray(x.swapaxes(0, 1)) for x in inputs)
        return query, key, value


@dataclass(frozen=True)
class _Session:
    """Tokens, and the state or cache between them."""

    tokens: Tokens
    state: Any
    buffers: Any = None


def attention_alone(
    *, heads: int = 8, dim: int = 32, seed: int = 0
) -> tuple[Generator, ...]:
    """Return the ways to generate with one layer of attention, float32, batch 1.

    The baseline ``linear`` is first; PyTorch takes part where it is installed.

    Examples
    --------
    >>> attention_alone()[0].name
    'linear'
    """
    tasks = ("attention alone",)

    @lru_cache(maxsize=4)
    def drawn(length: int) -> Tokens:
        return Tokens.drawn(length, heads, dim, seed)

    def starting(prepare: Callable[[Tokens], Any]) -> Callable[[int], Any]:
        return lambda length: prepare(drawn(length))

    own = (
        Generator(
            *("linear", "linear, linkern"),
            tasks=tasks,
            start=starting(_linear),
            generate=_generate_linear,
            held=lambda session: session.state.nbytes,
        ),
        Generator(
            *("numpy-cache", "softmax cached, NumPy"),
            tasks=tasks,
            start=starting(_cached),
            generate=_generate_cached,
            held=_held,
        ),
        Generator(
            *("numpy-recompute", "softmax recomputed, NumPy"),
            tasks=tasks,
            start=starting(_recomputed),
            generate=_generate_recomputed,
            held=_held,
            recomputes=True,
            longest=4096,  # one token of 16384 alone takes many seconds
        ),
    )
    if find_spec("torch") is None:
        return own
    return (*own, *torch_peers.generators(starting, tasks))


def _held(session: _Session) -> int:
    return sum(x.nbytes for x in session.state)


def _linear(tokens: Tokens) -> _Session:
    _, heads, dim = tokens.query.shape
    return _Session(tokens, Decoder(batch_shape=(heads,), key_dim=dim, value_dim=dim))


def _generate_linear(session: _Session, start: int, stop: int) -> None:
    step, tokens = session.state.step, session.tokens
    for query, key, value, output in zip(
        tokens.query[start:stop],
        tokens.key[start:stop],
        tokens.value[start:stop],
        tokens.output[start:stop],
        strict=True,
    ):
        step(query, key, value, output)


def _cached(tokens: Tokens) -> _Session:
    """Preallocate keys, transposed so that scores are one plain product, and values."""
    length, heads, dim = tokens.query.shape
    dtype = tokens.query.dtype
    keys = np.zeros((heads, dim, length), dtype)
    values = np.zeros((heads, length, dim), dtype)
    shapes = {
        "query": (heads, 1, dim),
        "scores": (heads, 1, length),
        "largest": (heads, 1, 1),
        "total": (heads, 1, 1),
        "read": (heads, 1, dim),
    }
    buffers = {name: np.empty(shape, dtype) for name, shape in shapes.items()}
    return _Session(tokens, (keys, values), buffers)


def _generate_cached(session: _Session, start: int, stop: int) -> None:
    tokens, (keys, values), buffers = session.tokens, session.state, session.buffers
    scaled, total, largest = buffers["query"], buffers["total"], buffers["largest"]
    read, rows = buffers["read"], buffers["read"][:, 0]
    scale = np.asarray(keys.shape[1] ** -0.5, keys.dtype)
    for i in range(start, stop):
        keys[:, :, i] = tokens.key[i]
        values[:, i] = tokens.value[i]
        np.multiply(tokens.query[i], scale, out=scaled[:, 0])
        scores = buffers["scores"][:, :, : i + 1]
        np.matmul(scaled, keys[:, :, : i + 1], out=scores)
        np.max(scores, axis=-1, keepdims=True, out=largest)
        np.subtract(scores, largest, out=scores)
        np.exp(scores, out=scores)
        np.sum(scores, axis=-1, keepdims=True, out=total)
        np.matmul(scores, values[:, : i + 1], out=read)
        np.divide(rows, total[:, 0], out=tokens.output[i])


def _recomputed(tokens: Tokens) -> _Session:
    return _Session(tokens, tokens.by_heads())


def _generate_recomputed(session: _Session, start: int, stop: int) -> None:
    """Compute all rows again for each token, and use the last.

    A model without a cache does the same: its next layer attends to the rows before
    the last.
    """
    for i in range(start, stop):
        query, key, value = (x[:, : i + 1] for x in session.state)
        rows = softmax_attention(query, key, value, block_size=min(i + 1, 512))
        session.tokens.output[i] = rows[:, -1]
