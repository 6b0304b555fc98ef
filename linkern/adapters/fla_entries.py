"""Catalogue of fla-core's reference functions, and their known failures."""

from collections.abc import Mapping
from typing import Any

from linkern.adapters.entry import GRADIENTS, Entry, because

__all__ = ["FLA"]

_DPLR = "fla.ops.generalized_delta_rule.dplr.naive"
_IPLR = "fla.ops.generalized_delta_rule.iplr.naive"
_HEADS_LAST = {"layout": "bthd"}
# They compute in float32 whatever they are given; the second kind returns it too.
_SINGLE = {"accumulator_dtype": "float32"}
_RETURNS_SINGLE = {**_SINGLE, "output_dtype": "float32"}
# The range of its factors is a number of Python, without a gradient.
_RANGE_OF_ONE_CALL = {"gradients": "none"}
_GROUPS = {"value_groups": "true"}
# Differences of cumulative decays: of infinite ones they are NaN.
_FINITE = {"decay_floor": "-88"}
# Quotients of cumulative decays over a chunk of 64, whose gradients overflow.
_CALM = {"decay_floor": "-1.3"}
_ONLY_FLOAT32 = ("float32",)
_UNDECAYED = because(
    "reads the decayed state, not the one before it, as the kernels do",
    "value_on_integers",
    "value_on_reals",
    "value_on_random_reals",
    "dimensions",
    "ranges",
    "state_value",
    *GRADIENTS,
    "gradient_of_state",
    "decay_extremes",
)
_SLOTS_ALONE = because(
    "its state lacks the sums that its slots are divided by",
    "state_split",
    "decoding",
    "gradient_of_state",
)
_ADDS = "adds eps=1e-6 to the denominator"
_EPSILON = because(
    _ADDS,
    "value_on_reals",
    "value_on_random_reals",
    "row_normalisation",
    "dimensions",
    "long_sequences",
    "ranges",
    *GRADIENTS,
)
_EPSILON_ALONE = because(_ADDS, "short_sequences")
_CONJUGATE = because(
    "adds 1e-5 to the divisors of its conjugate gradients",
    "value_on_reals",
    "value_on_random_reals",
    "dimensions",
    "scaling_of_keys",
    "ranges",
    *GRADIENTS,
    "gradient_of_state",
    "decay_extremes",
)


def _fla(
    function: str,
    op: str,
    *declared: Mapping[str, str],
    adapter: str = "",
    chunk: int = 0,
    expect: Mapping[str, str] | None = None,
    dtypes: tuple[str, ...] = ("float32", "float64"),
    **options: Any,
) -> Entry:
    """Return the entry of a function; `chunk`: lengths must be multiples of it."""
    place = function if function.startswith("fla.") else f"fla.ops.{function}"
    declare: dict[str, str] = {}
    for some in declared:
        declare |= some
    if chunk:
        declare |= {"length_multiple_of": str(chunk)}
    return Entry(
        "fla",
        f"linkern.adapters.fla:{adapter}" if adapter else place,
        op,
        declare=declare,
        expect_failure=expect or {},
        options=options,
        dtypes=dtypes,
        function=place,
    )


FLA = (
    _fla(
        "retention.naive:naive_retention", "retention", _SINGLE, {"max_length": "2795"}
    ),
    _fla(
        "simple_gla.naive:naive_recurrent_simple_gla",
        "simple_gla",
        _HEADS_LAST,
        _SINGLE,
    ),
    _fla(
        "simple_gla.naive:naive_chunk_simple_gla",
        "simple_gla",
        _HEADS_LAST,
        _RETURNS_SINGLE,
        _FINITE,
        dtypes=_ONLY_FLOAT32,
    ),
    _fla(
        "simple_gla.naive:naive_parallel_simple_gla",
        "simple_gla",
        _HEADS_LAST,
        _RETURNS_SINGLE,
        _FINITE,
    ),
    _fla("gla.naive:naive_recurrent_gla", "gla", _HEADS_LAST, _SINGLE),
    _fla("hgrn.naive:naive_recurrent_hgrn", "hgrn", _SINGLE, adapter="hgrn"),
    _fla("rwkv6.recurrent_naive:naive_recurrent_rwkv6", "rwkv6", _SINGLE),
    _fla(
        "rwkv6.chunk_naive:naive_chunk_rwkv6",
        "rwkv6",
        _SINGLE,
        _FINITE,
        {"scale": "1"},
        chunk=32,
        chunk_size=32,
    ),
    _fla("delta_rule.naive:delta_rule_recurrence", "delta_rule", _SINGLE),
    _fla(
        "delta_rule.naive:delta_rule_chunkwise", "delta_rule", chunk=32, chunk_size=32
    ),
    _fla("delta_rule.naive:delta_rule_parallel", "delta_rule", chunk=128),
    _fla(
        "gated_delta_rule.naive:naive_recurrent_gated_delta_rule",
        "gated_delta_rule",
        _HEADS_LAST,
        _RETURNS_SINGLE,
    ),
    _fla(
        "gated_delta_rule.naive:naive_chunk_gated_delta_rule",
        "gated_delta_rule",
        _HEADS_LAST,
        _RETURNS_SINGLE,
        _FINITE,
    ),
    _fla("kda.naive:naive_recurrent_kda", "kda", _HEADS_LAST, _SINGLE, _GROUPS),
    _fla(
        "kda.naive:naive_chunk_kda",
        "kda",
        _HEADS_LAST,
        _SINGLE,
        _GROUPS,
        _CALM,
        chunk=64,
        chunk_size=64,
    ),
    _fla(
        "precond_gated_delta_rule.naive:naive_recurrent_precond_gated_delta_rule",
        "preconditioned_gated_delta_rule",
        _RETURNS_SINGLE,
        _RANGE_OF_ONE_CALL,
        {"l2norm": "0"},
        adapter="preconditioned",
    ),
    _fla(
        "precond_kda.naive:naive_recurrent_precond_kda",
        "preconditioned_kda",
        _SINGLE,
        _RANGE_OF_ONE_CALL,
        adapter="preconditioned",
    ),
    _fla(
        "momentum_delta_rule.naive:recurrent_momentum_delta_rule_ref",
        "momentum_delta_rule",
        _RETURNS_SINGLE,
        adapter="momentum_delta_rule",
    ),
    _fla("gdn2.naive:naive_recurrent_gdn2", "gdn2", _HEADS_LAST, _RETURNS_SINGLE),
    _fla(
        "gdn2.naive:naive_chunk_gdn2",
        "gdn2",
        _HEADS_LAST,
        _RETURNS_SINGLE,
        _CALM,
        {"min_length": "1"},
    ),
    _fla(
        "comba.naive:naive_chunk_comba", "comba", _HEADS_LAST, _RETURNS_SINGLE, _FINITE
    ),
    _fla(
        "comba.naive:naive_recurrent_comba",
        "comba",
        _HEADS_LAST,
        _RETURNS_SINGLE,
        expect=_UNDECAYED,
    ),
    _fla(
        "gated_delta_product.naive:naive_recurrent_gated_delta_product",
        "gated_delta_product",
        _HEADS_LAST,
        _SINGLE,
        expect=because(
            "returns no rows for tokens after the last sequence",
            "packed_equals_separate",
        ),
    ),
    _fla(f"{_DPLR}:dplr_recurrence", "dplr", adapter="dplr", dtypes=_ONLY_FLOAT32),
    _fla(
        f"{_DPLR}:dplr_chunkwise",
        "dplr",
        _FINITE,
        adapter="dplr_chunkwise",
        dtypes=_ONLY_FLOAT32,
        chunk=32,
        chunk_size=32,
    ),
    _fla(
        f"{_DPLR}:dplr_recurrence",
        "rwkv7",
        {"scale": "K^-0.5"},
        adapter="rwkv7",
        dtypes=_ONLY_FLOAT32,
    ),
    _fla(f"{_IPLR}:iplr_recurrence", "iplr", adapter="iplr", dtypes=_ONLY_FLOAT32),
    _fla(
        f"{_IPLR}:iplr_chunkwise",
        "iplr",
        adapter="iplr_chunkwise",
        chunk=32,
        chunk_size=32,
    ),
    _fla("gsa.naive:naive_recurrent_gsa", "gsa", _SINGLE, adapter="gsa"),
    _fla("abc.naive:naive_recurrent_abc", "abc", _SINGLE, expect=_SLOTS_ALONE),
    _fla(
        "abc.naive:naive_cumsum_abc",
        "abc",
        _SINGLE,
        {"min_length": "1"},
        expect=because(
            "subtracts the largest slot of the whole sequence, later tokens included",
            "causality",
            "gradient_causality",
        ),
    ),
    _fla(
        "based.naive:naive_parallel_based",
        "based",
        expect=_EPSILON | _EPSILON_ALONE,
    ),
    _fla(
        "based.naive:naive_chunk_based",
        "based",
        expect=_EPSILON,
        chunk=64,
        chunk_size=64,
    ),
    _fla(
        "rebased.naive:naive_parallel_rebased",
        "rebased",
        expect=_EPSILON | _EPSILON_ALONE,
    ),
    _fla(
        "mesa_net.naive:naive_mesa_net_exact",
        "mesa",
        _RETURNS_SINGLE,
        {"equal_dims": "true"},
        adapter="mesa",
    ),
    _fla(
        "mesa_net.naive:naive_mesa_net_CG",
        "mesa",
        _CALM,
        {"equal_dims": "true"},
        adapter="mesa_conjugate_gradients",
        expect=_CONJUGATE,
        dtypes=_ONLY_FLOAT32,
        chunk=16,
        chunk_size=16,
    ),
    _fla(
        "log_linear_attn.naive:naive_log_linear_attn",
        "log_linear_attention",
        _HEADS_LAST,
        _GROUPS,
        _FINITE,
        {"min_length": "1", "max_length": "600"},
    ),
)
