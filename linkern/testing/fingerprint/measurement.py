"""The fingerprint of a target: what can be measured of its arithmetic."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

from linkern.testing.errors import DoesNotApply, TargetRaised
from linkern.testing.fingerprint import chunks, claims, epsilon, invariance, stages
from linkern.testing.problems.context import Scope
from linkern.testing.target.process import Target

__all__ = ["Fingerprint", "fingerprint"]

# Measurements that are JSON values as they are.
NAMED = ("dtype", "bits", "capped", "eps", "eps_mode", "chunk_size", "contradicted")


@dataclass(frozen=True)
class Fingerprint:
    """The significand bits that survive each stage, and what else was measured.

    Parameters
    ----------
    dtype : str
        Dtype of the inputs.
    bits : dict of str to int
        Significand bits by stage: ``value key query score sum state normalizer``, and
        gates by the name of the input; without those that could not be measured.
    eps : float or None
        Epsilon in the quotient, to three digits; None if there is none above
        `eps_resolution`.
    eps_resolution : float
        The smallest epsilon that would have shown; infinite if none would.
    chunk_size : int or None
        The chunk size, if sums show one.
    contradicted : tuple of str
        Declarations that the measurement contradicts, one sentence each.
    eps_mode : str or None
        How the epsilon enters: ``denominator normalizer clamp``.
    capped : tuple of str
        Stages of which such inputs and outputs cannot show more bits.
    reason : str
        What is not measured of the operator, and why, in one sentence; empty if all is.
    distances : dict of str to float
        Of each pair of outputs whose bits `batch_invariant` would make equal, the
        distance in units in the last place; 0 for equal bits.
    """

    dtype: str
    bits: dict[str, int]
    eps: float | None = None
    eps_resolution: float = math.inf
    chunk_size: int | None = None
    contradicted: tuple[str, ...] = ()
    eps_mode: str | None = None
    capped: tuple[str, ...] = ()
    reason: str = ""
    distances: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the fingerprint as JSON values; an infinite number is a string."""
        values = {name: getattr(self, name) for name in NAMED}
        values["ulps"] = {n: _number(x) for n, x in self.distances.items()}
        values["eps_resolution"] = _number(self.eps_resolution)
        return values | ({"reason": self.reason} if self.reason else {})


def _number(x: float) -> float | str:
    return x if math.isfinite(x) else "inf"


def fingerprint(target: Target, scope: Scope) -> Fingerprint:
    """Measure the arithmetic of a target, which is taken to be the operator.

    Judge it first: the measurement of a target that loses keys means little.

    Parameters
    ----------
    target : Target
        Loaded.
    scope : Scope
        Operator, contract and dtype.

    Returns
    -------
    Fingerprint
        Without what could not be measured, because the target raised or because the
        inputs that operator and contract allow do not show it.

    Raises
    ------
    TargetDied
        If the target crashed or hung.

    Examples
    --------
    >>> from linkern.testing import OPERATORS, Contract
    >>> from linkern.testing.kernels.correct import CORRECT
    >>> from linkern.testing.target.protocol import TargetConfig
    >>> from linkern.testing.target.process import InProcess
    >>> target = InProcess(TargetConfig("correct:chunk_16"), CORRECT["chunk_16"].kernel)
    >>> scope = Scope(OPERATORS["linear_attention"], Contract(), "float32")
    >>> measured = fingerprint(target, scope)
    >>> measured.bits["state"], measured.chunk_size, measured.eps
    (24, 16, None)
    """
    sheet = Fingerprint(scope.dtype, {})
    try:
        sheet = replace(sheet, distances=invariance.measure(target, scope))
        measured = stages.measure(target, scope)
    except DoesNotApply as error:
        return replace(sheet, reason=str(error))
    except TargetRaised as raised:
        return replace(sheet, reason=f"the target raised {raised}")
    sheet = replace(sheet, reason=_left_out(measured.wrong))
    if not measured.bits:
        return sheet
    eps = epsilon.measure(target, scope, measured.narrowest)
    corrected, other_epsilon = scope, tuple(claims.about_epsilon(scope, eps))
    if other_epsilon or (measured.scaled and eps.size):
        # With its epsilon declared, or none, what is left is rounding.
        size, mode = eps.size or 0.0, eps.mode or "denominator"
        contract = replace(scope.contract, eps=size, eps_mode=mode)
        corrected = replace(scope, contract=contract)
        measured = stages.measure(target, corrected)
    chunk_size = chunks.measure(target, scope)
    contradicted = (
        *claims.about_stages(target, corrected),
        *other_epsilon,
        *claims.about_chunks(scope, chunk_size),
    )
    return replace(
        sheet,
        bits=measured.bits,
        capped=measured.capped,
        eps=eps.size,
        eps_mode=eps.mode,
        eps_resolution=eps.resolution,
        chunk_size=chunk_size,
        contradicted=contradicted,
    )


def _left_out(wrong: tuple[str, ...]) -> str:
    """Return the reason why stages are left out; empty if none are."""
    if not wrong:
        return ""
    return (
        f"the bits of {', '.join(wrong)} are not measured: the output is wrong by more "
        "than rounding. See what `linkern verify` says of it."
    )
