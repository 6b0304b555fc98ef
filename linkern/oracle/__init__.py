"""The independent judge: exact values, gauges and proved bounds, in plain NumPy.

Nothing here imports the operators, their forms or their feature maps: what is judged
cannot lend the judge its mistakes.
"""

from linkern.oracle.bounds import (
    Bounded,
    Precisions,
    Quotient,
    bounded_output,
    bounded_state,
    depth,
    exact_integer_output,
    gamma,
    probable,
    unit_roundoff,
)
from linkern.oracle.exact import (
    Evaluation,
    Integers,
    Sums,
    evaluate,
    evaluate_integers,
)
from linkern.oracle.family import FAMILY, FamilyEvaluation, FamilyOperator
from linkern.oracle.features import FEATURE_MAPS, FeatureMap
from linkern.oracle.gradients import Differentiand, bounded_gradients

__all__ = [
    "FAMILY",
    "FEATURE_MAPS",
    "Bounded",
    "Differentiand",
    "Evaluation",
    "FamilyEvaluation",
    "FamilyOperator",
    "FeatureMap",
    "Integers",
    "Precisions",
    "Quotient",
    "Sums",
    "bounded_gradients",
    "bounded_output",
    "bounded_state",
    "depth",
    "evaluate",
    "evaluate_integers",
    "exact_integer_output",
    "gamma",
    "probable",
    "unit_roundoff",
]
