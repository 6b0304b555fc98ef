"""Asking a target about a few tokens: chosen features in, one number per row out.

Everything else in the sequence is zero, and a sum that adds zero rounds nothing. All
such questions have one shape, so that a target which compiles for each does so once.
An operator with gates gets neutral ones, under which it sums as linear attention with
the identity as feature map does, without a quotient.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import FeatureMap, Quotient
from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.errors import TargetRaised, UsageError
from linkern.testing.problems.context import Scope, Shape
from linkern.testing.problems.gates import as_declared
from linkern.testing.problems.strategies import no_integers
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import Operator
from linkern.testing.target.frameworks import numpy_dtype
from linkern.testing.target.process import Target
from linkern.testing.target.protocol import Call

__all__ = [
    "Prober",
    "Question",
    "Token",
    "Unanswered",
    "inputs_of",
    "lengths",
    "power_of_four",
    "powers_of_two",
    "prepared",
    "unmeasured",
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
# Values of gates under which tokens are summed, and nothing else happens.
NEUTRAL = {
    "a": 0.0,
    "auxiliary_key": 0.0,
    "b": 0.0,
    "beta": 1.0,
    "bonus": 1.0,
    "erase_gate": 0.0,
    "level_scales": 1.0,
    "removal_key": 0.0,
    "removal_rate": 0.0,
    "write_gate": 1.0,
}
# What decides whether keys erase, if there is such an input.
ERASING = {"a", "auxiliary_key", "erase_gate", "removal_key"}
# Exponents that every dtype has room for, on either side.
SAFE_EXPONENT = 14


class Unanswered(Exception):  # noqa: N818 -- it is what happened, no error of ours
    """The target raised on a question, or did not return an output of its shape."""


@dataclass(frozen=True)
class Token:
    """One key: its position, its first features, and every entry of its value."""

    at: int
    features: tuple[int, ...]
    value: float = 0.0


@dataclass(frozen=True)
class Question:
    """The first features of every query, and all tokens that are not zero."""

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
class Prober:
    """A target, and the one shape in which it is asked.

    Parameters
    ----------
    target : Target
        Behind its fence.
    scope : Scope
        What it declares; for an operator with gates, as linear attention.
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
    def reads(self) -> bool:
        """True if queries and keys weigh the values."""
        return "query" in self.scope.operator.names

    @property
    def erases(self) -> bool:
        """True if a key erases what an equal one wrote, whatever the gates."""
        return _erases(self.scope.operator)

    @property
    def quotient(self) -> Quotient:
        """The declared quotient of the sums."""
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
        if not self.reads:
            return 0
        limits = []
        for feature_map in (self.scope.query_map, self.scope.key_map):
            limits.append(feature_map.largest_integer.bit_length() - 1)
            # 2^n is made of a neighbour, which must be exact.
            if not feature_map.homogeneous:
                limits.append(self.input_bits)
        if self.scope.dtype == "float16":
            limits.append(SAFE_EXPONENT)
        return min(limits)

    @property
    def largest_weight(self) -> int:
        """The largest integer weight of a value under a query of 1."""
        return self.scope.key_map.largest_integer if self.reads else 1

    def ask(self, query: Real, key: Real, value: Real) -> Real:
        """Return the output ``(T, V)`` for inputs without batch and heads."""
        return _answer(self.target, self.scope, query, key, value)[0]

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
            inputs_of(feature_map, x)
            for feature_map, x in (
                (self.scope.query_map, query),
                (self.scope.key_map, key),
            )
        )
        return self.ask(query, key, value)[:, 0]

    def exact(self, question: Question) -> float:
        """Return the exact output after the last token, declared epsilon included."""
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


def unmeasured(scope: Scope) -> str:
    """Return what integers cannot measure of an operator, and why; empty if nothing."""
    operator = scope.operator
    if operator.feature_map:
        return ""
    reason = no_integers(scope)
    if reason is None and _erases(operator) and "key" in operator.linear:
        reason = "values erase one another, so no sum of two of them is left"
    if reason is not None:
        return f"nothing is measured: {reason}"
    if _erases(operator):
        return (
            "scores and the chunk size are not measured: a key erases what an equal "
            "one wrote, so sums hold one value for each key"
        )
    if "query" not in operator.names:
        return "keys and scores are not measured: there are no queries and keys"
    return ""


def _erases(operator: Operator) -> bool:
    return operator.erases and not ERASING & {*operator.names}


def prepared(target: Target, scope: Scope) -> Prober | None:
    """Return a prober of the largest shape that the target takes; None if none."""
    scope = _as_linear_attention(scope)
    for feature_map in (scope.query_map, scope.key_map):
        if feature_map.from_integers is None:
            msg = (
                f"the feature map `{feature_map.name}` has no integer features, so "
                "nothing can be measured by them; take the fingerprint of another one."
            )
            raise UsageError(msg)
    for length in lengths(scope.contract, LENGTHS):
        for key_dim, value_dim in _dims(scope.contract):
            query, value = np.ones((length, key_dim)), np.ones((length, value_dim))
            if _erases(scope.operator):
                value = 0 * value  # keys of such a length erase too much
            try:
                _, dtype = _answer(target, scope, query, query, value)
            except Unanswered:
                continue
            known = dtype if dtype in SIGNIFICAND_BITS else scope.output_dtype
            channels = _channels(scope.contract, value_dim)
            return Prober(target, scope, length, key_dim, value_dim, channels, known)
    return None


def _as_linear_attention(scope: Scope) -> Scope:
    """Return the scope of an operator under neutral gates."""
    if scope.operator.feature_map:
        return scope
    declared = scope.contract.scale
    contract = replace(
        scope.contract,
        feature_map="identity",
        normalize=False,
        scale=scope.operator.scale if declared is None else declared,
    )
    return replace(scope, contract=contract)


def inputs_of(feature_map: FeatureMap, features: Real) -> Real:
    """Return inputs with these features: exactly the integers, closely the others."""
    assert feature_map.from_integers is not None
    whole = features == np.round(features)
    exact, close = feature_map.from_integers(features), feature_map.preimage(features)
    return np.where(whole, exact, close)


def powers_of_two(total: int, largest: int) -> list[int]:
    """Return powers of two up to `largest` with that sum, in falling order.

    Examples
    --------
    >>> powers_of_two(21, largest=8)
    [8, 8, 4, 1]
    """
    powers = []
    while total:
        powers.append(min(largest, 1 << (total.bit_length() - 1)))
        total -= powers[-1]
    return powers


def lengths(contract: Contract, wanted: tuple[int, ...]) -> Iterator[int]:
    """Yield the allowed lengths next to those that are wanted, each of them once."""
    step = contract.length_multiple_of
    least = max(contract.min_length, SHORTEST)
    distinct: dict[int, None] = {}
    for length in wanted:
        allowed = -(-max(length, least) // step) * step
        if contract.max_length is not None:
            allowed = min(allowed, contract.max_length // step * step)
        if allowed >= least:
            distinct[allowed] = None
    yield from distinct


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
    """Return True if the square root of `n` is a power of two."""
    return n & (n - 1) == 0 and n.bit_length() % 2 == 1


def _answer(
    target: Target, scope: Scope, query: Real, key: Real, value: Real
) -> tuple[Real, str]:
    """Return the output ``(T, V)`` and its dtype."""
    arrays = {"query": query, "key": key, "value": value}
    length, levels = len(query), len(query).bit_length() + 1
    dims = query.shape[-1], value.shape[-1]
    shape = Shape(1, 1, length, length, *dims, levels=levels)
    inputs: dict[str, NDArray[Any]] = {}
    for one in scope.operator.inputs:
        x = arrays.get(one.name)
        if x is not None:
            x = x[None, None]
        elif one.name == "log_decay":
            x = as_declared(scope, np.zeros(shape.of(one.axes)))
        else:
            x = np.full(shape.of(one.axes), NEUTRAL[one.name])
        with np.errstate(all="ignore"):
            inputs[one.name] = x.astype(numpy_dtype(scope.dtype))
    try:
        reply = target.call(Call(inputs))
    except TargetRaised as raised:
        raise Unanswered(str(raised)) from None
    if reply.output is None or reply.output.shape != shape.of("bgtv"):
        msg = f"an output of shape {reply.shape} instead of {reply.expected_shape}"
        raise Unanswered(msg)
    return reply.output[0, 0].astype(np.float64), reply.dtype
