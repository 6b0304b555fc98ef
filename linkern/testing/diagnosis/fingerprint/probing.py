"""Asking a target about a few tokens: chosen features in, one number per row out.

Everything else in the sequence is zero, and a sum that adds zero rounds nothing. All
such questions have one shape, so that a target which compiles for each does so once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import FeatureMap, Quotient
from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.errors import TargetRaised, UsageError
from linkern.testing.problems.context import Scope
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import INPUT_NAMES
from linkern.testing.target.frameworks import numpy_dtype
from linkern.testing.target.process import Target
from linkern.testing.target.protocol import Call

__all__ = [
    "Laboratory",
    "Question",
    "Token",
    "Unanswered",
    "inputs_of",
    "lengths",
    "power_of_four",
    "powers_of_two",
    "prepared",
]

Real = NDArray[np.float64]

# Keys lie in the first half: any chunk of up to 320 ends between them and the last row.
LENGTHS = (640, 512, 256, 128, 64, 32, 16)
SHORTEST = 8
# Powers of 4, so that a scale of K^-0.5 is a power of two, declared or not.
KEY_DIMS = (4, 16, 64)
# What can be asked about each value channel by itself is asked of as many at once; of
# more than this, not every kernel takes.
CHANNELS = 64
# Exponents that every dtype has room for, on either side.
SAFE_EXPONENT = 14


class Unanswered(Exception):  # noqa: N818 -- it is what happened, no error of ours
    """The target raised on a question, or did not return an output of its shape."""


@dataclass(frozen=True)
class Token:
    """One key with its value.

    Parameters
    ----------
    at : int
        Its position.
    features : tuple of int
        Its first features; the others are zero.
    value : float
        Every entry of its value.
    """

    at: int
    features: tuple[int, ...]
    value: float = 0.0


@dataclass(frozen=True)
class Question:
    """A few tokens, and what is exact after the last of them.

    Parameters
    ----------
    query : tuple of int
        First features of every query; the others are zero.
    tokens : tuple of Token
        All that is not zero.
    """

    query: tuple[int, ...]
    tokens: tuple[Token, ...]

    @property
    def last(self) -> int:
        """The first row that sees all of them."""
        return max(token.at for token in self.tokens)

    @property
    def sums(self) -> tuple[Fraction, int]:
        """Numerator and denominator."""
        numerator, denominator = Fraction(), 0
        for token in self.tokens:
            pairs = zip(self.query, token.features, strict=False)
            weight = sum(a * b for a, b in pairs)
            numerator += weight * Fraction(token.value)
            denominator += weight
        return numerator, denominator


@dataclass(frozen=True)
class Laboratory:
    """A target, and the one shape in which it is asked.

    Parameters
    ----------
    target : Target
        Behind its fence.
    scope : Scope
        What it declares.
    length, key_dim, value_dim : int
        T, K and V.
    channels : int
        V where each channel is a question of its own.
    output_dtype : str
        The dtype in which it answers.
    """

    target: Target
    scope: Scope
    length: int
    key_dim: int
    value_dim: int
    channels: int
    output_dtype: str

    @property
    def quotient(self) -> Quotient:
        """How the target is declared to make an output of its sums."""
        return self.scope.contract.quotient(self.key_dim)

    @property
    def output_bits(self) -> int:
        """Significand bits of an answer."""
        return SIGNIFICAND_BITS[self.output_dtype]

    @property
    def input_bits(self) -> int:
        """Significand bits of a feature or value."""
        return SIGNIFICAND_BITS[self.scope.dtype]

    @property
    def power_limit(self) -> int:
        """The largest n for which ``2^n`` is an exact feature of some input."""
        limits = []
        for of in (self.scope.query_map, self.scope.key_map):
            limits.append(of.largest_integer.bit_length() - 1)
            if not of.homogeneous:  # 2^n is made of a neighbour, which must be exact
                limits.append(self.input_bits)
        if self.scope.dtype == "float16":
            limits.append(SAFE_EXPONENT)
        return min(limits)

    def ask(self, query: Real, key: Real, value: Real) -> Real:
        """Return the output ``(T, V)`` for inputs without batch and heads."""
        dtype = numpy_dtype(self.scope.dtype)
        with np.errstate(all="ignore"):
            given = [x[None, None].astype(dtype) for x in (query, key, value)]
        return _answer(self.target, given)[0]

    def answers(self, question: Question) -> Real:
        """Return the output ``(T,)`` of the first value channel."""
        query = np.zeros((self.length, self.key_dim))
        query[:, : len(question.query)] = question.query
        key = np.zeros((self.length, self.key_dim))
        value = np.zeros((self.length, self.value_dim))
        for token in question.tokens:
            key[token.at, : len(token.features)] = token.features
            value[token.at] = token.value
        query, key = (
            inputs_of(of, x)
            for of, x in ((self.scope.query_map, query), (self.scope.key_map, key))
        )
        return self.ask(query, key, value)[:, 0]

    def exact(self, question: Question) -> float:
        """Return what the output is after the last token, declared epsilon included."""
        numerator, denominator = question.sums
        scale = Fraction(self.quotient.scale)
        if not self.quotient.normalize:
            return float(scale * numerator)
        divisor = scale * denominator
        eps = Fraction(self.quotient.eps)
        if self.quotient.eps_mode == "clamp":
            divisor = max(divisor, eps)
        elif self.quotient.eps_mode == "normalizer":
            divisor += scale * eps * sum(question.query)
        else:
            divisor += eps
        return float(scale * numerator / divisor)


def prepared(target: Target, scope: Scope) -> Laboratory | None:
    """Return a laboratory of the largest shape that the target takes; None if none."""
    for of in (scope.query_map, scope.key_map):
        if of.from_integers is None:
            msg = (
                f"the feature map `{of.name}` has no integer features, so nothing can "
                "be measured by them; take the fingerprint of another one."
            )
            raise UsageError(msg)
    for length in lengths(scope.contract, LENGTHS):
        for key_dim, value_dim in _dims(scope.contract):
            shapes = ((length, key_dim), (length, key_dim), (length, value_dim))
            ones = [np.ones((1, 1, *s), numpy_dtype(scope.dtype)) for s in shapes]
            try:
                _, dtype = _answer(target, ones)
            except Unanswered:
                continue
            known = dtype if dtype in SIGNIFICAND_BITS else scope.output_dtype
            channels = _channels(scope.contract, value_dim)
            return Laboratory(
                target, scope, length, key_dim, value_dim, channels, known
            )
    return None


def inputs_of(of: FeatureMap, features: Real) -> Real:
    """Return inputs with these features: exactly the integers, closely the others."""
    assert of.from_integers is not None
    whole = features == np.round(features)
    return np.where(whole, of.from_integers(features), of.preimage(features))


def powers_of_two(total: int, largest: int) -> list[int]:
    """Return powers of two up to `largest` with that sum, in falling order.

    Examples
    --------
    >>> powers_of_two(21, largest=8)
    [8, 8, 4, 1]
    """
    found = []
    while total:
        found.append(min(largest, 1 << (total.bit_length() - 1)))
        total -= found[-1]
    return found


def lengths(contract: Contract, wanted: tuple[int, ...]) -> Iterator[int]:
    """Yield the allowed lengths next to those that are wanted, each of them once."""
    step = contract.length_multiple_of
    least = max(contract.min_length, SHORTEST)
    found: dict[int, None] = {}
    for length in wanted:
        allowed = -(-max(length, least) // step) * step
        if contract.max_length is not None:
            allowed = min(allowed, contract.max_length // step * step)
        if allowed >= least:
            found[allowed] = None
    yield from found


def _dims(contract: Contract) -> Iterator[tuple[int, int]]:
    """Yield the dimensions K and V to try, those that can show most first."""
    key_dims = contract.key_dims or KEY_DIMS
    if contract.equal_dims and contract.value_dims:
        key_dims = tuple(n for n in key_dims if n in contract.value_dims)
    wanted = CHANNELS if contract.equal_dims else KEY_DIMS[0]

    def rank(n: int) -> tuple[bool, bool, int]:
        return n < KEY_DIMS[0], not power_of_four(n), abs(n - wanted)

    for key_dim in sorted(key_dims, key=rank):
        shared = contract.equal_dims or not contract.value_dims
        yield key_dim, key_dim if shared else min(contract.value_dims)


def _channels(contract: Contract, value_dim: int) -> int:
    """Return how many value channels there can be at once, a useful number of them."""
    if contract.equal_dims:
        return value_dim
    allowed = contract.value_dims or (CHANNELS,)
    return min(allowed, key=lambda n: abs(n - CHANNELS))


def power_of_four(n: int) -> bool:
    """Whether the square root of `n` is a power of two."""
    return n & (n - 1) == 0 and n.bit_length() % 2 == 1


def _answer(target: Target, inputs: list[NDArray[Any]]) -> tuple[Real, str]:
    try:
        reply = target.call(Call(dict(zip(INPUT_NAMES, inputs, strict=True))))
    except TargetRaised as raised:
        raise Unanswered(str(raised)) from None
    expected = (*inputs[0].shape[:-1], inputs[2].shape[-1])
    if reply.output is None or reply.output.shape != expected:
        msg = f"an output of shape {reply.shape} instead of {reply.expected_shape}"
        raise Unanswered(msg)
    return reply.output[0, 0].astype(np.float64), reply.dtype
