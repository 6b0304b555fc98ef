"""Lengths of problems: as many tokens as a proved bound says something of.

Where rows erase, the bound grows with the length, and its proof is dense: it takes as
many operations as there are pairs of rows. So most problems of such an operator are
short, and a share of them is as long as the arithmetic allows.
"""

from dataclasses import dataclass, replace

from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.problems.context import Scope

__all__ = ["Reach", "of_gradients", "of_long_outputs", "of_outputs", "of_strong_gates"]

# Lengths of the problems that are longer than most, around edges of chunks up to 512,
# with tails of a few tokens and of almost a chunk; and the share of such problems.
_FAR = (
    *(193, 200, 255, 256, 257, 300, 319, 385, 448, 500, 511, 512, 513, 520),
    *(577, 600, 641, 700, 769, 831, 960, 1023, 1024, 1025, 1100),
)
_FAR_GRADIENTS = (200, 129, 193, 160, 257, 320, 448, 513, 600)
_SHARE, _SHARE_OF_GRADIENTS = 1 / 10, 1 / 5
# Significand bits of float64 and of float32.
_DOUBLE, _SINGLE = 53, 24
# Rows of a dense proof, and how many numbers it holds for all pairs of them.
_ROWS, _ENTRIES = 1300, 2**23


@dataclass(frozen=True)
class Reach:
    """The lengths of problems.

    Parameters
    ----------
    usual : int or None
        Most problems have no more tokens; None for those of `shapes`.
    most : int or None
        None has more; None for no limit.
    keys : int or None
        Limit of the keys, of which a token may have several; None for no limit.
    rows : int
        Rows of the proof for each key; 0 if it is not dense.
    far : tuple of int
        Lengths of the problems that have more tokens than `usual`.
    share : float
        Their share.
    """

    usual: int | None = None
    most: int | None = None
    keys: int | None = None
    rows: int = 0
    far: tuple[int, ...] = _FAR
    share: float = _SHARE

    def largest_dim(self, keys: int) -> int | None:
        """Return the largest dimension along which so many keys may erase."""
        if not self.rows or self.keys is None:
            return None
        return max(1, _ENTRIES // (self.rows * max(min(keys, self.keys), 1)) ** 2)


def of_outputs(scope: Scope) -> Reach:
    """Return the lengths at which outputs and states are compared with a bound."""
    operator, bits = scope.operator, _bits(scope)
    if not _grows(scope):
        return Reach()
    usual = 320 if "slots" in operator.names else 70 if operator.micro_steps else 130
    most = 1100 if bits >= _DOUBLE else 300 if bits >= _SINGLE else 130
    return _dense(scope, Reach(usual, most), operator.rows_per_token)


def of_long_outputs(scope: Scope) -> Reach:
    """Return the same of open gates, whose errors are taken for independent."""
    reach = of_outputs(scope)
    if reach.most is None or _bits(scope) != _SINGLE:
        return reach
    return replace(reach, most=min(700, reach.keys or 700))


def of_gradients(scope: Scope) -> Reach:
    """Return the lengths at which gradients are compared with a bound."""
    operator, bits = scope.operator, _bits(scope)
    usual = 200 if operator.feature_map else 70
    most = usual
    if bits >= _SINGLE:
        most = 600 if bits >= _DOUBLE else 200 if _grows(scope) else 300
    far, share = _FAR_GRADIENTS, _SHARE_OF_GRADIENTS
    # The adjoint of a row that erases is two rows.
    rows = 2 * operator.rows_per_token
    return _dense(scope, Reach(usual, most, far=far, share=share), rows)


def of_strong_gates(scope: Scope) -> int | None:
    """Return how many keys strong gates may have, if not as many as others."""
    operator = scope.operator
    # A sum of weights may be off by its own size where decays are.
    decayed = "log_decay" in operator.names and not operator.log_normalizer
    divided = "ridge" in operator.names or (operator.normalised and decayed)
    if _bits(scope) >= _DOUBLE or not (operator.erases or divided):
        return None
    few = operator.scales_keys or _goes_on(scope)
    return (50 if few else 130) // operator.rows_per_token


def _dense(scope: Scope, reach: Reach, rows: int) -> Reach:
    """Return the reach that a dense proof leaves, at the dimensions of the contract."""
    contract, operator = scope.contract, scope.operator
    if not operator.erases:
        return reach
    along = contract.key_dims if operator.erase_along == "key" else contract.value_dims
    square = _ENTRIES // min(along or (4,))
    keys = min(_ROWS, int(square**0.5)) // rows
    assert reach.usual is not None
    assert reach.most is not None
    usual, most = min(reach.usual, keys), min(reach.most, keys)
    return replace(reach, usual=usual, most=most, keys=keys, rows=rows)


def _grows(scope: Scope) -> bool:
    """Return True if bounds of reals grow until they say nothing."""
    operator = scope.operator
    growing = {"angle", "input_gate", "ridge", "slots"}
    return operator.erases or not growing.isdisjoint(operator.names)


def _goes_on(scope: Scope) -> bool:
    """Return True if a memory goes on along its corrections, and bounds with it."""
    return "momentum_beta" in scope.operator.names


def _bits(scope: Scope) -> int:
    """Return the significand bits of the narrowest stage between input and output."""
    stages = scope.contract.precisions(scope.dtype)
    feature = stages.feature or stages.accumulator
    return min(scope.narrowest_bits, SIGNIFICAND_BITS[feature])
