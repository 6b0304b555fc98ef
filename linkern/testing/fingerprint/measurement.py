"""The fingerprint of a target: what integers can measure of its arithmetic."""

import math
from dataclasses import dataclass, field
from typing import Any

from linkern.testing.fingerprint import (
    chunks,
    claims,
    epsilon,
    invariance,
    significands,
)
from linkern.testing.fingerprint.probing import prepared, unmeasured
from linkern.testing.problems.context import Scope
from linkern.testing.target.process import Target

__all__ = ["Fingerprint", "fingerprint"]


@dataclass(frozen=True)
class Fingerprint:
    """The significand bits that survive each stage, and what else was measured.

    Parameters
    ----------
    dtype : str
        Dtype of the inputs.
    bits : dict of str to int
        Significand bits by stage: ``value key score state normalizer``; without those
        that could not be measured.
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
    eps: float | None
    eps_resolution: float
    chunk_size: int | None
    contradicted: tuple[str, ...] = ()
    eps_mode: str | None = None
    capped: tuple[str, ...] = ()
    reason: str = ""
    distances: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of_nothing(
        cls, dtype: str, reason: str, distances: dict[str, float] | None = None
    ) -> "Fingerprint":
        """Return the fingerprint of a target whose arithmetic was not measured."""
        return cls(
            dtype, {}, None, math.inf, None, reason=reason, distances=distances or {}
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fingerprint as JSON values; an infinite number is a string."""
        resolution = self.eps_resolution
        reason = {"reason": self.reason} if self.reason else {}
        return {
            "dtype": self.dtype,
            "bits": dict(self.bits),
            "capped": list(self.capped),
            "eps": self.eps,
            "eps_mode": self.eps_mode,
            "eps_resolution": resolution if math.isfinite(resolution) else "inf",
            "chunk_size": self.chunk_size,
            "contradicted": list(self.contradicted),
            "ulps": {
                name: x if math.isfinite(x) else "inf"
                for name, x in self.distances.items()
            },
            **reason,
        }


def fingerprint(target: Target, scope: Scope) -> Fingerprint:
    """Measure the arithmetic of a target, which is taken to be the operator.

    Judge it first: the measurement of a target that loses keys means little.

    Parameters
    ----------
    target : Target
        Behind its fence.
    scope : Scope
        Operator, contract and dtype.

    Returns
    -------
    Fingerprint
        Without what could not be measured, because the target raised or because the
        inputs that operator and contract allow do not show it.

    Raises
    ------
    UsageError
        If the feature map has no integer features.
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
    reason = unmeasured(scope)
    nothing = reason.startswith("nothing")
    prober = None if nothing else prepared(target, scope)
    distances = invariance.measure(target, scope)
    if prober is None:
        return Fingerprint.of_nothing(scope.dtype, reason, distances)
    stages = significands.measure(prober)
    eps = epsilon.measure(prober, stages)
    chunk_size = chunks.measure(prober)
    contradicted = (
        *claims.about_stages(prober, stages, chunk_size),
        *claims.about_epsilon(prober, eps),
        *claims.about_chunks(prober, chunk_size),
    )
    return Fingerprint(
        scope.dtype,
        stages.bits,
        eps.size,
        eps.resolution,
        chunk_size,
        contradicted,
        eps.mode,
        tuple(stage for stage in stages.bits if stage in stages.capped),
        reason,
        distances,
    )
