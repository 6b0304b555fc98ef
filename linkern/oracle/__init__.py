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
from linkern.oracle.conditioning import condition
from linkern.oracle.features import FEATURE_MAPS, FeatureMap
from linkern.oracle.inputs import Input, Reduction
from linkern.oracle.normalized import feature_gradients
from linkern.oracle.operator import Operator
from linkern.oracle.operators import OPERATORS
from linkern.oracle.recording import ExactResult, Recording
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
    "FEATURE_MAPS",
    "OPERATORS",
    "Bounded",
    "Evaluation",
    "ExactResult",
    "FeatureMap",
    "Input",
    "Operator",
    "Options",
    "Precisions",
    "Quotient",
    "Recording",
    "Reduction",
    "Sums",
    "bounded_output",
    "bounded_state",
    "condition",
    "depth",
    "evaluate",
    "exact_output",
    "feature_gradients",
    "gamma",
    "probable",
    "unit_roundoff",
]
