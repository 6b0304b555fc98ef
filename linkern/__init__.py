"""The numerical reference for linear attention: operators, gradients, state.

Names are imported when they are first used, and load NumPy and `array_api_compat`
alone. The referee lives in `linkern.testing` and behind the command ``linkern verify``.
"""

from typing import TYPE_CHECKING

from linkern._lazy import attributes_of
from linkern._version import __version__

__all__ = [
    "AttentionResult",
    "SpanMap",
    "State",
    "__version__",
    "abc",
    "based",
    "comba",
    "delta_rule",
    "dplr",
    "elu_plus_one",
    "exp",
    "feature_maps",
    "gated_delta_product",
    "gated_delta_rule",
    "gdn2",
    "gla",
    "gsa",
    "hgrn",
    "identity",
    "iplr",
    "kda",
    "lightning_attention",
    "linear_attention",
    "linear_attention_step",
    "log_linear_attention",
    "mesa",
    "oja",
    "rebased",
    "relu",
    "retention",
    "rwkv4",
    "rwkv6",
    "rwkv7",
    "simple_gla",
    "span_map",
    "ssd",
    "step",
    "vjp",
]

if TYPE_CHECKING:
    from linkern import feature_maps
    from linkern._spans import SpanMap, span_map
    from linkern._state import AttentionResult, State
    from linkern._stepping import step
    from linkern._vjp import vjp
    from linkern.feature_maps import elu_plus_one, exp, identity, relu
    from linkern.operators import (
        abc,
        based,
        comba,
        delta_rule,
        dplr,
        gated_delta_product,
        gated_delta_rule,
        gdn2,
        gla,
        gsa,
        hgrn,
        iplr,
        kda,
        lightning_attention,
        linear_attention,
        linear_attention_step,
        log_linear_attention,
        mesa,
        oja,
        rebased,
        retention,
        rwkv4,
        rwkv6,
        rwkv7,
        simple_gla,
        ssd,
    )
else:
    _HOMES = {
        "AttentionResult": "_state",
        "SpanMap": "_spans",
        "State": "_state",
        "abc": "operators",
        "based": "operators",
        "comba": "operators",
        "delta_rule": "operators",
        "dplr": "operators",
        "elu_plus_one": "feature_maps",
        "exp": "feature_maps",
        "feature_maps": "feature_maps",
        "gated_delta_product": "operators",
        "gated_delta_rule": "operators",
        "gdn2": "operators",
        "gla": "operators",
        "gsa": "operators",
        "hgrn": "operators",
        "identity": "feature_maps",
        "iplr": "operators",
        "kda": "operators",
        "lightning_attention": "operators",
        "linear_attention": "operators",
        "linear_attention_step": "operators",
        "log_linear_attention": "operators",
        "mesa": "operators",
        "oja": "operators",
        "rebased": "operators",
        "relu": "feature_maps",
        "retention": "operators",
        "rwkv4": "operators",
        "rwkv6": "operators",
        "rwkv7": "operators",
        "simple_gla": "operators",
        "span_map": "_spans",
        "ssd": "operators",
        "step": "_stepping",
        "vjp": "_vjp",
    }
    __getattr__ = attributes_of(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
