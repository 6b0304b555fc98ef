"""The numerical reference for linear attention: operators, feature maps, state.

Names are imported when they are first used, and load NumPy and `array_api_compat`
alone. The referee lives in `linkern.testing` and behind the command ``linkern verify``.
"""

from typing import TYPE_CHECKING

from linkern._lazy import attributes_of
from linkern._version import __version__

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

if TYPE_CHECKING:
    from linkern import feature_maps
    from linkern._state import AttentionResult, State
    from linkern.feature_maps import elu_plus_one, exp, identity, relu
    from linkern.operators import linear_attention, linear_attention_step
else:
    _HOMES = {
        "AttentionResult": "_state",
        "State": "_state",
        "elu_plus_one": "feature_maps",
        "exp": "feature_maps",
        "feature_maps": "feature_maps",
        "identity": "feature_maps",
        "linear_attention": "operators",
        "linear_attention_step": "operators",
        "relu": "feature_maps",
    }
    __getattr__ = attributes_of(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
