"""Catalogue of published kernels of linear attention, and their known failures."""

from linkern.adapters.entry import GRADIENTS, Entry, because

__all__ = ["LINEAR_ATTENTION"]

_FEATURES = {"feature_map": "identity"}
_SOFTMAX_EXP = {
    "feature_map": "softmax",
    "key_feature_map": "exp",
    "equal_dims": "true",
}
_FLA = {"feature_map": "identity", "scale": "K^-0.5", "layout": "bthd"}
_LAT = "linear_attention_transformer.linear_attention_transformer"
_NAIVE = "fla.ops.linear_attn.naive"

_EPSILON_SHOWS = (
    "short_sequences",
    "value_on_integers",
    "value_on_reals",
    "value_on_random_reals",
    "row_normalisation",
    "dimensions",
    "long_sequences",
)

LINEAR_ATTENTION = (
    Entry(
        "performer_pytorch",
        "performer_pytorch.performer_pytorch:causal_linear_attention_noncuda",
        "linear_attention",
        declare=_FEATURES,
        expect_failure=because(
            "adds eps=1e-6 to every entry of the normalizer",
            *_EPSILON_SHOWS,
            "scaling_of_keys",
            "ranges",
            *GRADIENTS,
            "gradient_identities",
        ),
    ),
    Entry(
        "performer_pytorch",
        "performer_pytorch.performer_pytorch:linear_attention",
        "linear_attention_noncausal",
        declare=_FEATURES,
    ),
    Entry(
        "linear_attention_transformer",
        f"{_LAT}:linear_attn",
        "linear_attention_noncausal",
        declare=_SOFTMAX_EXP,
        expect_failure=because(
            "normalises features over the keys, not rows; rows sum to K^-0.5",
            "short_sequences",
            "value_on_reals",
            "value_on_random_reals",
            "row_normalisation",
            "dimensions",
            "long_sequences",
            "ranges",
            *GRADIENTS,
        ),
    ),
    Entry(
        "linear_attention_transformer",
        "linkern.adapters.published:linear_attention_transformer_causal",
        "linear_attention",
        declare=_SOFTMAX_EXP,
        expect_failure=because(
            "clamps the denominator at 1e-3", "row_normalisation", "ranges"
        ),
    ),
    Entry(
        "linear_attention_transformer",
        "linkern.adapters.published:linear_attention_transformer_causal_blind",
        "linear_attention",
        declare={**_SOFTMAX_EXP, "length_multiple_of": "64"},
        expect_failure=because(
            "a query sees no key of its own bucket of 64, so the first 64 rows are 0",
            "value_on_reals",
            "value_on_random_reals",
            "row_normalisation",
            "dimensions",
            "long_sequences",
            "ranges",
            "nan_policy",
            *GRADIENTS,
        ),
    ),
    Entry(
        "kornia",
        "linkern.adapters.published:kornia_loftr",
        "linear_attention_noncausal",
        declare={"layout": "bthd"},
        expect_failure=because(
            "adds eps=1e-6 to the denominator",
            *_EPSILON_SHOWS,
            "ranges",
            *GRADIENTS,
            "gradient_identities",
        ),
    ),
    Entry(
        "diffusers",
        "linkern.adapters.published:diffusers_sana",
        "linear_attention_noncausal",
        declare=_FEATURES,
        expect_failure=because(
            "adds eps=1e-15 to the denominator", "scaling_of_keys", "ranges"
        ),
        dtypes=("float32",),
    ),
    Entry(
        "fla",
        f"{_NAIVE}:naive_recurrent_linear_attn",
        "linear_attention",
        declare=_FLA,
        expect_failure=because(
            "adds eps=1e-10 to the denominator",
            "row_normalisation",
            "scaling_of_keys",
            "ranges",
        ),
        options={"normalize": True},
        dtypes=("float32",),
    ),
    Entry(
        "fla",
        f"{_NAIVE}:naive_recurrent_linear_attn",
        "linear_attention",
        declare={**_FLA, "normalize": "false"},
        expect_failure=because(
            "computes in float32 whatever it is given",
            "short_sequences",
            "value_on_integers",
            "value_on_reals",
            "value_on_random_reals",
            "dimensions",
            "long_sequences",
            "permutations",
            "additivity_of_values",
            "scaling_of_values",
            "scaling_of_keys",
            "ranges",
            "state_value",
            "state_merge",
            *GRADIENTS,
            "gradient_of_state",
            "finite_differences",
        ),
    ),
    Entry(
        "fla",
        f"{_NAIVE}:naive_chunk_linear_attn",
        "linear_attention",
        declare={**_FLA, "length_multiple_of": "64"},
        expect_failure=because(
            "adds eps=1e-10 to the denominator",
            "value_on_integers",
            "value_on_reals",
            "value_on_random_reals",
            "row_normalisation",
            "dimensions",
            "long_sequences",
            "scaling_of_keys",
            "ranges",
            *GRADIENTS,
            "gradient_identities",
        ),
        options={"normalize": True},
    ),
    Entry(
        "fla",
        f"{_NAIVE}:naive_chunk_linear_attn",
        "linear_attention",
        declare={**_FLA, "normalize": "false", "length_multiple_of": "64"},
    ),
)
