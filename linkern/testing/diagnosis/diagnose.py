"""Naming the cause of a failure: known deviations, predicted by the oracle.

A target answers a fixed set of problems. A deviation is named only if it predicts every
one of the answers within rounding, and if target and deviation both leave the operator
by more than rounding allows: so no correct target is ever diagnosed.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.diagnosis.diagnosis import Diagnosis
from linkern.testing.diagnosis.hypotheses.evidence import Evidence
from linkern.testing.diagnosis.hypotheses.hypothesis import (
    OPERATOR,
    hypotheses_of,
)
from linkern.testing.diagnosis.hypotheses.probe import STAGES
from linkern.testing.errors import TargetDied, TargetRaised
from linkern.testing.problems.context import Scope
from linkern.testing.target.process import Target
from linkern.testing.target.protocol import Reply

__all__ = ["diagnose"]


def diagnose(target: Target, scope: Scope) -> Diagnosis | None:
    """Return what a target computes instead of the operator, if that is known.

    Parameters
    ----------
    target : Target
        Behind its fence; it is called some two dozen times.
    scope : Scope
        What it claims and declares.

    Returns
    -------
    Diagnosis or None
        None if no deviation of the catalogue predicts all of its outputs.
    """
    seen: list[Evidence] = []
    for stage, ask in STAGES.items():
        try:
            seen.append(ask(target, scope))
        except (TargetRaised, TargetDied):
            break
        if seen[-1].informative:
            return _agreeing(seen[-1], stage) or next(_observed(seen), None)
    return next(_observed(seen), None)


# Predictions of defects overflow and divide by zero as a matter of course.
@np.errstate(all="ignore")
def _agreeing(evidence: Evidence, stage: str) -> Diagnosis | None:
    for hypothesis in hypotheses_of(stage, evidence.scope):
        for deviation in hypothesis.propose(evidence):
            ratio = evidence.agreement(deviation)
            if ratio is not None:
                named = _named(deviation.name, deviation.phrase, ratio)
                return replace(named, declaration=deviation.declaration)
    return None


def _named(name: str, phrase: str, ratio: float) -> Diagnosis:
    of_bound = f"max difference {ratio:.2g} of the bound"
    return Diagnosis(name, f"agrees with {phrase} ({of_bound})", ratio)


def _observed(seen: list[Evidence]) -> Iterator[Diagnosis]:
    """Yield defects that need no prediction, since they were observed."""
    replies = [reply for evidence in seen for reply in evidence.replies]
    if not replies:
        return
    if replies[0].output is None:
        sentence = f"returns a {replies[0].kind} instead of an array"
        yield Diagnosis("returns_other_type", sentence, np.inf)
    outputs = seen[0].repeated
    if any(not np.array_equal(x, outputs[0], equal_nan=True) for x in outputs):
        sentence = "returns other bits for the same inputs from call to call"
        yield Diagnosis("not_deterministic", sentence, np.inf)
    informative = [probe for evidence in seen for probe in evidence.informative]
    around = [probe for probe in informative if "memory" in probe.problem.knobs]
    if around and all(np.isnan(probe.got[probe.violated]).all() for probe in around):
        sentence = "returns NaN where only the memory around its inputs holds any"
        yield Diagnosis("reads_around_inputs", sentence, np.inf)
    if not informative:
        yield from _side_effects(seen, replies)


def _side_effects(seen: list[Evidence], replies: list[Reply]) -> Iterator[Diagnosis]:
    """Yield what a target does besides returning the right output."""
    scope = seen[0].scope
    ratios = (p.ratio(OPERATOR, p.exact) for asked in seen for p in asked.probes)
    ratio = max(ratios, default=0.0)
    expected, dtype = scope.output_dtype, replies[0].dtype
    if dtype != expected:
        phrase = f"outputs of {dtype} instead of {expected}"
        named = _named("returns_other_dtype", phrase, ratio)
        known = dtype in SIGNIFICAND_BITS
        yield replace(named, declaration=(f"output_dtype={dtype}",) * known)
    changed = {x for r in replies for x in r.changed} - {*scope.contract.mutates}
    traces = {x for r in replies for x in r.traces}
    failures = [x.fails_on_one_token for x in seen if x.fails_on_one_token]
    inputs = {*scope.operator.names, "initial_state"}
    overwritten = ",".join(sorted({*scope.contract.mutates, *(changed & inputs)}))
    mutates = (f"mutates={overwritten}",) * (changed <= inputs)
    effects = [
        *(("overwrites_input", f"overwrites {x}", mutates) for x in sorted(changed)),
        *(("leaves_traces", f"changes {x}", ()) for x in sorted(traces)),
        *[("shares_memory", "returns the memory of an input", ())]
        * any(r.aliased for r in replies),
        *[("overwrites_output", "overwrites the output of the call before", ())]
        * any(r.overwritten for r in replies),
        *(
            ("raises_on_one_token", f"raises on one token: {x}", ("min_length=2",))
            for x in failures
        ),
    ]
    for name, effect, declaration in effects:
        named = _named(name, f"the operator, but {effect}", ratio)
        yield replace(named, declaration=declaration)
