"""Slopes of feature maps where two of their branches meet: inputs of exactly zero.

Branches that are both taken there, or half of each, leave outputs right and gradients
of all other inputs too, so no map of usual numbers shows it.
"""

import numpy as np

from linkern.testing.checks.registry import any_of, no_gradients, no_slopes
from linkern.testing.diagnosis.calm import calm_problem
from linkern.testing.diagnosis.diagnosis import Diagnosis
from linkern.testing.diagnosis.sentences import hint, sentence
from linkern.testing.problems.context import Scope
from linkern.testing.problems.generators import with_cotangent
from linkern.testing.problems.shapes import Sizes
from linkern.testing.target.process import Target
from linkern.testing.target.protocol import Call, in_float64

__all__ = ["slope_at_zero"]

# Batch, heads, length, key and value dimension; every so many-th token is zero.
SIZES: Sizes = (1, 2, 24, 4, 5)
EVERY = 3
# What is left of a slope where branches are taken at once, or none is.
FACTORS = {"2": 2.0, "1 / 2": 0.5, "0": 0.0}


def slope_at_zero(target: Target, scope: Scope) -> Diagnosis | None:
    """Return what becomes of gradients where queries and keys are zero.

    None if they are right there, or wrong elsewhere as well.
    """
    if not scope.operator.feature_map or any_of(no_gradients, no_slopes)(scope):
        return None
    rng = np.random.default_rng(0)
    drawn = with_cotangent(calm_problem(scope, SIZES, rng), rng)
    zeroed = {}
    for name in ("query", "key"):
        zeroed[name] = drawn.inputs[name].copy()
        zeroed[name][..., ::EVERY, :] = 0
    problem = drawn.with_inputs(**zeroed)
    gradients = target.call(Call(problem.inputs, cotangent=problem.cotangent)).gradients
    if gradients is None:
        return None
    exact = problem.solve_gradients()
    for name, got in zip(problem.inputs, gradients, strict=True):
        expected = exact[name]
        if got.shape != expected.output.shape:
            return None
        zero = problem.inputs[name] == 0
        allowed = expected.once_stored(scope.dtype)
        error = abs(in_float64(got) - expected.output)
        if name not in zeroed or not (error > allowed)[zero].any():
            continue
        if not (error <= allowed)[~zero].all():
            return None
        stage, where = f"gradient of {name}", f"where {name} is 0"
        by_what = next(
            (
                words
                for words, factor in FACTORS.items()
                if (abs(got - factor * expected.output) <= 2 * allowed)[zero].all()
            ),
            "",
        )
        return Diagnosis(
            f"{stage.replace(' ', '_')}_at_zero",
            sentence(stage, where, by_what),
            float(np.max(error[zero] / allowed[zero])),
            stage=stage,
            where=where,
            by_what=by_what,
            hint=hint(stage, where, by_what),
        )
    return None
