"""The numerical reference for linear attention: operators, gradients, state.

Names are imported when they are first used, and load NumPy and `array_api_compat`
alone. The referee lives in `linkern.testing` and behind the command ``linkern verify``.
"""

from typing import TYPE_CHECKING

from linkern._lazy import attributes_of
from linkern._version import __version__

__all__ = [
    "AttentionResult",
    "Decoder",
    "SpanMap",
    "State",
    "__version__",
    "abc",
    "approximation_curve",
    "approximation_error",
    "attention_weights",
    "based",
    "comba",
    "cost",
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
    "kernel_attention",
    "lightning_attention",
    "linear_attention",
    "linear_attention_step",
    "log_linear_attention",
    "lsh_attention",
    "mamba3",
    "mesa",
    "mlstm",
    "momentum_delta_rule",
    "oja",
    "power_retention",
    "preconditioned_gated_delta_rule",
    "preconditioned_kda",
    "rebased",
    "relu",
    "retention",
    "rwkv4",
    "rwkv6",
    "rwkv7",
    "selective_scan",
    "similarity",
    "simple_gla",
    "softmax_attention",
    "span_map",
    "sparse_attention",
    "ssd",
    "step",
    "transformer",
    "vjp",
]

if TYPE_CHECKING:
    from linkern import cost, feature_maps, similarity, transformer
    from linkern.analysis.attention_matrix import attention_weights
    from linkern.analysis.span_map import SpanMap, span_map
    from linkern.approximation import approximation_curve, approximation_error
    from linkern.attention import (
        kernel_attention,
        lsh_attention,
        softmax_attention,
        sparse_attention,
    )
    from linkern.autodiff.vjp import vjp
    from linkern.decoding import Decoder
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
        mamba3,
        mesa,
        mlstm,
        momentum_delta_rule,
        oja,
        power_retention,
        preconditioned_gated_delta_rule,
        preconditioned_kda,
        rebased,
        retention,
        rwkv4,
        rwkv6,
        rwkv7,
        selective_scan,
        simple_gla,
        ssd,
    )
    from linkern.operators.step import step
    from linkern.state import AttentionResult, State
else:
    _HOMES = {
        "AttentionResult": "state",
        "Decoder": "decoding",
        "SpanMap": "analysis.span_map",
        "State": "state",
        "abc": "operators",
        "approximation_curve": "approximation",
        "approximation_error": "approximation",
        "attention_weights": "analysis.attention_matrix",
        "based": "operators",
        "comba": "operators",
        "cost": "cost",
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
        "kernel_attention": "attention",
        "lightning_attention": "operators",
        "linear_attention": "operators",
        "linear_attention_step": "operators",
        "log_linear_attention": "operators",
        "lsh_attention": "attention",
        "mamba3": "operators",
        "mesa": "operators",
        "mlstm": "operators",
        "momentum_delta_rule": "operators",
        "oja": "operators",
        "power_retention": "operators",
        "preconditioned_gated_delta_rule": "operators",
        "preconditioned_kda": "operators",
        "rebased": "operators",
        "relu": "feature_maps",
        "retention": "operators",
        "rwkv4": "operators",
        "rwkv6": "operators",
        "rwkv7": "operators",
        "selective_scan": "operators",
        "similarity": "similarity",
        "simple_gla": "operators",
        "softmax_attention": "attention",
        "span_map": "analysis.span_map",
        "sparse_attention": "attention",
        "ssd": "operators",
        "step": "operators.step",
        "transformer": "transformer",
        "vjp": "autodiff.vjp",
    }
    __getattr__ = attributes_of(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
