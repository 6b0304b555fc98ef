"""The fingerprint of a target: what integers can measure of its arithmetic."""

import math
from dataclasses import dataclass
from typing import Any

from linkern.testing.diagnosis.fingerprint import (
    chunks,
    claims,
    epsilon,
    significands,
)
from linkern.testing.diagnosis.fingerprint.probing import prepared
from linkern.testing.problems.context import Scope
from linkern.testing.target.process import Target

__all__ = ["Fingerprint", "fingerprint"]


@dataclass(frozen=True)
class Fingerprint:
    """How many significand bits survive at each stage, and what else shows.

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
    """

    dtype: str
    bits: dict[str, int]
    eps: float | None
    eps_resolution: float
    chunk_size: int | None
    contradicted: tuple[str, ...] = ()
    eps_mode: str | None = None
    capped: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the fingerprint as JSON values; an infinite number is a string."""
        resolution = self.eps_resolution
        return {
            "dtype": self.dtype,
            "bits": dict(self.bits),
            "capped": list(self.capped),
            "eps": self.eps,
            "eps_mode": self.eps_mode,
            "eps_resolution": resolution if math.isfinite(resolution) else "inf",
            "chunk_size": self.chunk_size,
            "contradicted": list(self.contradicted),
        }


def fingerprint(target: Target, scope: Scope) -> Fingerprint:
    """Measure the arithmetic of a target, which is taken to be the operator.

    What it says of a target that loses keys, say, is of little worth: judge it first.

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
        inputs that its contract allows do not show it.

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
    >>> found = fingerprint(target, scope)
    >>> found.bits["state"], found.chunk_size, found.eps
    (24, 16, None)
    """
    laboratory = prepared(target, scope)
    if laboratory is None:
        return Fingerprint(scope.dtype, {}, None, math.inf, None)
    stages = significands.measure(laboratory)
    eps = epsilon.measure(laboratory, stages)
    chunk_size = chunks.measure(laboratory)
    contradicted = (
        *claims.about_stages(laboratory, stages, chunk_size),
        *claims.about_epsilon(laboratory, eps),
        *claims.about_chunks(laboratory, chunk_size),
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
    )
