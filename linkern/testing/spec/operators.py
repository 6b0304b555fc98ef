"""The operators that a target can claim to be: the records of the oracle."""

from linkern.oracle.inputs import Input
from linkern.oracle.operator import INVERSE_ROOT_KEY_DIM, Operator
from linkern.oracle.operators import OPERATORS

__all__ = ["INPUT_NAMES", "INVERSE_ROOT_KEY_DIM", "OPERATORS", "Input", "Operator"]

# The inputs of linear attention, in their order.
INPUT_NAMES = OPERATORS["linear_attention"].names
