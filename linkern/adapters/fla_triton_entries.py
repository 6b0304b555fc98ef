"""Catalogue of fla-core's Triton kernels, interpreted on a CPU, and their failures.

Each is judged within a time. A kernel with a known failure is judged by the laws that
are named here alone, so that it is that failure that is seen.
"""

from collections.abc import Mapping
from typing import Any

from linkern.adapters.entry import Entry, because

__all__ = ["FLA_TRITON"]

# Seconds of one kernel, and the checks that are enough for a verdict in that time.
SECONDS, ENOUGH = 120.0, ("no_access_out_of_bounds", "causality", "value_on_reals")
# Rows behind the last packed sequence are left as they were allocated.
_CALLED = {"layout": "bthd", "packing": "full"}
# Differences of cumulative decays: of infinite ones they are NaN.
_FLOOR = {"decay_floor": "-5"}
# Recurrent kernels have no tiles in time, and are interpreted token by token.
_SHORT = {"max_length": "20"}
# The range of its factors is a number of Python, without a gradient.
_RANGE_OF_ONE_CALL = {"gradients": "none"}
# It drops the keyword that asks it not to, and refuses keys of more than 256 channels.
_NORMALISES = {"l2norm": "1e-6", "key_dims": "1,4,7,64,128"}
_IDENTITY = {"feature_map": "identity", "scale": "K^-0.5"}
_EPSILON = {"eps": "1e-10"}
_NO_DECAY = because(
    "takes differences of cumulative decays, which are NaN where one is -inf",
    "value_on_integers",
)


def _triton(
    function: str,
    op: str,
    *declared: Mapping[str, str],
    adapter: str = "",
    checks: tuple[str, ...] = (),
    expect: Mapping[str, str] | None = None,
    dtypes: tuple[str, ...] = ("float32",),
    **options: Any,
) -> Entry:
    """Return the entry of a kernel, called as it is or through an adapter."""
    declare = {"packing": "full"} if adapter else {**_CALLED}
    for some in declared:
        declare |= some
    place, expect = f"fla.ops.{function}", expect or {}
    return Entry(
        "fla",
        f"linkern.adapters.fla_triton:{adapter}" if adapter else place,
        op,
        declare=declare,
        expect_failure=expect,
        options=options,
        dtypes=dtypes,
        function=place,
        interpret=True,
        seconds=SECONDS,
        checks=(*checks, *expect),
        require=(*checks, *expect) or ENOUGH,
    )


_DIFFERENCES = because(
    "takes the gradient of a decay as the difference of two sums", "gradient_value"
)
_VALUES = (*ENOUGH, "value_on_integers")

FLA_TRITON = (
    _triton("simple_gla:chunk_simple_gla", "simple_gla", _FLOOR),
    _triton("simple_gla:chunk_simple_gla", "simple_gla", expect=_NO_DECAY),
    _triton("simple_gla:fused_chunk_simple_gla", "simple_gla", _FLOOR),
    _triton("simple_gla:parallel_simple_gla", "simple_gla", _FLOOR),
    _triton("simple_gla:fused_recurrent_simple_gla", "simple_gla", _SHORT),
    _triton("linear_attn:chunk_linear_attn", "linear_attention", _IDENTITY, _EPSILON),
    _triton(
        "linear_attn:fused_chunk_linear_attn", "linear_attention", _IDENTITY, _EPSILON
    ),
    _triton(
        "linear_attn:fused_recurrent_linear_attn", "linear_attention", _IDENTITY, _SHORT
    ),
    _triton("retention:chunk_retention", "retention"),
    _triton("retention:fused_chunk_retention", "retention"),
    _triton("retention:parallel_retention", "retention"),
    _triton("retention:fused_recurrent_retention", "retention", _SHORT),
    _triton(
        "lightning_attn:chunk_lightning_attn",
        "lightning_attention",
        checks=_VALUES,
        expect=because(
            "returns a state with NaN after a prompt of no multiple of 64 tokens",
            "decoding",
        ),
    ),
    _triton(
        "lightning_attn:fused_recurrent_lightning_attn", "lightning_attention", _SHORT
    ),
    _triton("gla:chunk_gla", "gla", _FLOOR),
    _triton("gla:fused_recurrent_gla", "gla", _SHORT),
    _triton(
        "delta_rule:chunk_delta_rule",
        "delta_rule",
        checks=("no_access_out_of_bounds", "causality"),
        expect=because(
            "keeps arrays between its kernels in bfloat16", "value_on_reals"
        ),
        dtypes=("bfloat16",),
    ),
    _triton(
        "gated_delta_product:chunk_gated_delta_product",
        "gated_delta_product",
        _FLOOR,
        checks=("no_access_out_of_bounds",),
        expect=because(
            "keeps arrays between its kernels in bfloat16", "value_on_integers"
        ),
        dtypes=("bfloat16",),
    ),
    _triton("delta_rule:fused_recurrent_delta_rule", "delta_rule", _SHORT),
    _triton("gated_delta_rule:chunk_gated_delta_rule", "gated_delta_rule", _FLOOR),
    _triton(
        "gated_delta_rule:fused_recurrent_gated_delta_rule", "gated_delta_rule", _SHORT
    ),
    _triton("kda:chunk_kda", "kda", safe_gate=True, lower_bound=-5.0),
    _triton("kda:fused_recurrent_kda", "kda", _SHORT),
    _triton("gdn2:chunk_gdn2", "gdn2", _FLOOR),
    _triton("gdn2:fused_recurrent_gdn2", "gdn2", _SHORT),
    _triton("comba:chunk_comba", "comba", _FLOOR),
    _triton("comba:fused_recurrent_comba", "comba", _SHORT),
    _triton("gated_oja_rule:chunk_gated_oja_rule", "oja", _FLOOR),
    _triton(
        "gated_oja_rule:fused_recurrent_gated_oja_rule",
        "oja",
        _SHORT,
        {"value_dims": "1,2,7,64,128"},
    ),
    _triton("gsa:chunk_gsa", "gsa", _FLOOR),
    _triton("gsa:fused_recurrent_gsa", "gsa", _SHORT),
    _triton("rwkv6:chunk_rwkv6", "rwkv6", _FLOOR, checks=_VALUES, expect=_DIFFERENCES),
    _triton(
        "rwkv6:fused_recurrent_rwkv6",
        "rwkv6",
        _SHORT,
        checks=_VALUES,
        expect=_DIFFERENCES,
    ),
    _triton(
        "rwkv7:chunk_rwkv7",
        "dplr",
        {"scale": "1"},
        checks=("no_access_out_of_bounds", "value_on_integers"),
        expect=because(
            "divides the decays of a chunk by that of its middle token", "causality"
        ),
        safe_gate=True,
    ),
    _triton("rwkv7:fused_recurrent_rwkv7", "dplr", _SHORT),
    _triton("rwkv7:fused_mul_recurrent_rwkv7", "rwkv7", _SHORT),
    _triton("generalized_delta_rule:fused_recurrent_dplr_delta_rule", "dplr", _SHORT),
    _triton("generalized_delta_rule:fused_recurrent_iplr_delta_rule", "iplr", _SHORT),
    _triton(
        "hgrn:chunk_hgrn",
        "hgrn",
        adapter="hgrn_chunkwise",
        checks=_VALUES,
        expect=because("passes no gradient through its state", "gradient_of_state"),
    ),
    _triton("hgrn:fused_recurrent_hgrn", "hgrn", _SHORT, adapter="hgrn_recurrent"),
    *(
        _triton(
            f"precond_{rule}:{kernel}_precond_{rule}",
            f"preconditioned_{rule}",
            _SHORT if kernel == "fused_recurrent" else _FLOOR,
            _NORMALISES if (rule, kernel) == ("kda", "chunk") else {},
            _RANGE_OF_ONE_CALL,
            adapter="preconditioned",
            kernel=kernel,
        )
        for rule in ("kda", "gated_delta_rule")
        for kernel in ("chunk", "fused_recurrent")
    ),
)
