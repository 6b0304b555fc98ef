"""The independent judge: exact values, gauges and proved bounds, in plain NumPy.

Nothing here imports the operators, their forms or their feature maps: what is judged
cannot lend the judge its mistakes.
"""

from linkern.oracle.bounds import (
    Bounded,
    Precisions,
    gamma,
    probable,
    unit_roundoff,
)
from linkern.oracle.calls import Options
from linkern.oracle.features import FEATURE_MAPS, FeatureMap
from linkern.oracle.normalized import feature_gradients
from linkern.oracle.operators import (
    FAMILY,
    FamilyEvaluation,
    FamilyOperator,
    Played,
)
from linkern.oracle.sums import (
    Evaluation,
    Quotient,
    Sums,
    bounded_output,
    bounded_state,
    depth,
    evaluate,
    exact_output,
)

__all__ = [
    "FAMILY",
    "FEATURE_MAPS",
    "Bounded",
    "Evaluation",
    "FamilyEvaluation",
    "FamilyOperator",
    "FeatureMap",
    "Options",
    "Played",
    "Precisions",
    "Quotient",
    "Sums",
    "bounded_output",
    "bounded_state",
    "depth",
    "evaluate",
    "exact_output",
    "feature_gradients",
    "gamma",
    "probable",
    "unit_roundoff",
]
