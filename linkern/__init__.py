"""The numerical reference for linear attention: operators, feature maps, state.

Importing this package loads NumPy and `array_api_compat` alone. The referee lives in
`linkern.testing` and behind the command ``linkern verify``.
"""

from linkern import feature_maps
from linkern._state import AttentionResult, State
from linkern._version import __version__
from linkern.feature_maps import elu_plus_one, exp, identity, relu
from linkern.operators import linear_attention, linear_attention_step

__all__ = [
    "AttentionResult",
    "State",
    "__version__",
    "elu_plus_one",
    "exp",
    "feature_maps",
    "identity",
    "linear_attention",
    "linear_attention_step",
    "relu",
]
