"""Laws of memory, threads, NaN and equal bits, each judged on one calm problem.

The sentence is that of the violation, with what the contract has to declare if it is
meant. `reported_law` covers laws that break at other sizes alone.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from linkern.testing.checks import CHECKS
from linkern.testing.checks.assertions import CheckedTarget
from linkern.testing.checks.findings import NOT_FINITE, Tally, Violation
from linkern.testing.diagnosis.calm import calm_problem
from linkern.testing.diagnosis.diagnosis import Diagnosis
from linkern.testing.errors import DoesNotApply
from linkern.testing.problems.context import Scope
from linkern.testing.problems.problem import Problem
from linkern.testing.target.process import Target

__all__ = ["broken_law", "reported_law"]


class _Law(NamedTuple):
    """Check of a law, the name of its violation if that has a word, a declaration."""

    check: str
    name: str
    declaration: str = ""
    word: str = ""

    def is_of(self, check: str, said: str) -> bool:
        """Return True if the sentence of a violation is about this law."""
        return self.check == check and self.word in said

    def broken(self, said: str, sentence: str, scope: Scope) -> Diagnosis:
        """Return the diagnosis, with the declaration that allows what was said."""
        inputs = {*scope.operator.names, "initial_state"} & {*said.split()}
        mutates = ",".join(sorted({*scope.contract.mutates, *inputs}))
        declared = (self.declaration.format(mutates),) * bool(self.declaration)
        return Diagnosis(self.name, sentence, np.inf, declared)


LAWS = (
    _Law("inputs_untouched", "overwrites_input", "mutates={}", "overwrote"),
    _Law("inputs_untouched", "shares_memory"),
    _Law("leaves_no_trace", "leaves_traces"),
    _Law("nothing_leaks_from_padding", "writes_around_inputs", word="wrote to"),
    _Law("nothing_leaks_from_padding", "reads_around_inputs", word="offset"),
    _Law("strides", "assumes_contiguous", "strides=contiguous"),
    _Law("nan_policy", "swallows_nan", "nan_policy=any", "became finite"),
    _Law("batch_invariance", "not_batch_invariant", "batch_invariant=false"),
    _Law("split_invariance", "not_split_invariant", "batch_invariant=rows"),
    _Law("thread_safety", "not_thread_safe", "thread_safe=false"),
)
# Batch, heads, length, key and value dimension: of this batch, the law of equal bits
# takes three sequences, which leave a rest beside tiles of two. Tokens before a cut.
SIZES, CUT = (5, 2, 77, 12, 8), 32
# Choices that laws leave to a draw.
KNOBS = {"cut": 1, "poison": np.nan, "inputs": "value", "change": "one number"}
KNOBS |= {"calls": 1, "split": False}


def broken_law(target: Target, scope: Scope) -> Diagnosis | None:
    """Return the first law that a target breaks.

    Parameters
    ----------
    target : Target
        Loaded; it is called some fifty times.
    scope : Scope
        What it claims and declares.

    Returns
    -------
    Diagnosis or None
        None if all of them hold that apply.

    Raises
    ------
    TargetDied
        If the target crashed or hung.
    """
    problem = calm_problem(scope, SIZES)
    step = scope.contract.length_multiple_of
    cut = -(-CUT // step) * step
    problem = problem.told(cuts=(cut,) * (cut < problem.length), **KNOBS)
    for check in dict.fromkeys(law.check for law in LAWS):
        shared = check == "thread_safety" and scope.contract.mutates
        if shared or CHECKS[check].unless(scope) is not None:
            continue
        styles = set(scope.styles) - {"broadcast"} if check == "strides" else {"offset"}
        for style in sorted(styles):
            said = _violation(target, check, problem.told(memory=style))
            for law in LAWS if said else ():
                if law.is_of(check, said):
                    return law.broken(said, said, scope)
    return None


def reported_law(
    verdicts: Sequence[tuple[str, str, str]], scope: Scope
) -> Diagnosis | None:
    """Return the first law of which a verdict says all that there is to say.

    Parameters
    ----------
    verdicts : sequence of (str, str, str)
        The check, the sentence and the smallest input of each failure.
    scope : Scope
        What the target claims and declares.

    Returns
    -------
    Diagnosis or None
        None if no verdict is about such a law.
    """
    for law in LAWS:
        for check, said, where in verdicts:
            if law.is_of(check, said):
                return law.broken(said, f"{said}, at {where}", scope)
    return None


def _violation(target: Target, check: str, problem: Problem) -> str:
    """Return the sentence of a violation; empty if there is none of this law."""
    try:
        CHECKS[check].law(CheckedTarget(target, Tally()), problem)
    except Violation as violation:
        if violation.deviation in ("", NOT_FINITE):
            return violation.message
    except DoesNotApply:
        pass
    return ""
