"""Functions of transformers that are operators, and the laws that each breaks."""

from collections.abc import Mapping
from typing import Any

from linkern.adapters.entry import Entry

__all__ = ["TRANSFORMERS"]

_QWEN3_NEXT = "qwen3_next.modeling_qwen3_next"
_KIMI = "kimi_linear.modeling_kimi_linear"
_MAMBA2 = "mamba2.modeling_mamba2"
# They compute in float32 whatever they are given.
_SINGLE = {"accumulator_dtype": "float32"}
_GROUPS = {"value_groups": "true"}
# Differences of cumulative decays: of infinite ones they are NaN.
_FINITE = {"decay_floor": "-88"}


def _transformers(
    function: str,
    adapter: str,
    op: str,
    *declared: Mapping[str, str],
    expect: Mapping[str, str] | None = None,
    **options: Any,
) -> Entry:
    declare: dict[str, str] = {}
    for some in declared:
        declare |= some
    return Entry(
        "transformers",
        f"linkern.adapters.transformers:{adapter}",
        op,
        declare=declare,
        expect_failure=expect or {},
        options=options,
        function=f"transformers.models.{function}",
    )


TRANSFORMERS = (
    _transformers(
        f"{_QWEN3_NEXT}:torch_recurrent_gated_delta_rule",
        "gated_delta_recurrent",
        "gated_delta_rule",
        _SINGLE,
        _GROUPS,
    ),
    _transformers(
        f"{_QWEN3_NEXT}:torch_recurrent_gated_delta_rule",
        "gated_delta_recurrent",
        "gated_delta_rule",
        _SINGLE,
        _GROUPS,
        {"l2norm": "1e-6"},
        use_qk_l2norm_in_kernel=True,
    ),
    _transformers(
        f"{_QWEN3_NEXT}:torch_chunk_gated_delta_rule",
        "gated_delta_chunk",
        "gated_delta_rule",
        _SINGLE,
        _GROUPS,
        _FINITE,
    ),
    _transformers(
        f"{_QWEN3_NEXT}:torch_chunk_gated_delta_rule",
        "gated_delta_chunk",
        "gated_delta_rule",
        _SINGLE,
        _GROUPS,
        _FINITE,
        {"l2norm": "1e-6"},
        use_qk_l2norm_in_kernel=True,
    ),
    _transformers(
        f"{_KIMI}:recurrent_kimi_delta_attention", "kimi_recurrent", "kda", _SINGLE
    ),
    _transformers(
        f"{_KIMI}:chunk_kimi_delta_attention", "kimi_chunk", "kda", _SINGLE, _FINITE
    ),
    _transformers(
        f"{_MAMBA2}:mamba2_chunk_scan",
        "mamba2",
        "simple_gla",
        _SINGLE,
        _GROUPS,
        _FINITE,
        {"scale": "1", "output_dtype": "float32"},
    ),
    _transformers(
        f"{_MAMBA2}:mamba2_selective_state_update",
        "mamba2_step",
        "simple_gla",
        _SINGLE,
        _GROUPS,
        {"scale": "1"},
    ),
    _transformers(
        "rwkv.modeling_rwkv:rwkv_linear_attention_cpu",
        "rwkv4",
        "rwkv4",
        _SINGLE,
        {"min_length": "1"},
    ),
)
