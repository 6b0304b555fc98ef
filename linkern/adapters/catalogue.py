"""What `linkern verify` judges when it is given no target.

linkern's own forms on every array library, and published kernels with the laws that
each is known to break. An expected failure that no longer happens is a failure: the
entry is out of date, and so is `docs/findings.md`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from linkern.testing import OPERATORS, UsageError
from linkern.testing.contract import nearest

__all__ = ["OWN", "PUBLISHED", "Entry", "installed"]


@dataclass(frozen=True)
class Entry:
    """One kernel, and how to judge it.

    Parameters
    ----------
    package : str
        Import name of the package that must be installed.
    target : str
        ``package.module:attribute``.
    op : str
        Operator it claims to be.
    framework : str
        What it is fed.
    declare : mapping
        Its contract.
    expect_failure : mapping
        Laws that it is known to break, and why.
    options : mapping
        Keyword arguments of every call.
    dtypes : tuple of str
        Dtypes it is fed.
    """

    package: str
    target: str
    op: str
    framework: str = "torch"
    declare: Mapping[str, str] = field(default_factory=dict)
    expect_failure: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ("float32", "float64")


def _own() -> Iterator[Entry]:
    for library in ("numpy", "array_api_strict", "torch", "jax"):
        for form in ("auto", "recurrent", "parallel"):
            for operator in OPERATORS.values():
                options: dict[str, Any] = {}
                if form != "auto":
                    # Fixed options are not varied: these forms have no chunks.
                    options = {"form": form, "chunk_size": None}
                if not operator.causal:
                    options["causal"] = False
                yield Entry(
                    package=library,
                    target="linkern:linear_attention",
                    op=operator.name,
                    framework=library,
                    options=options,
                )


OWN = tuple(_own())

_FEATURES = {"feature_map": "identity"}
_SOFTMAX_EXP = {
    "feature_map": "softmax",
    "key_feature_map": "exp",
    "equal_dims": "true",
}
_FLA = {"feature_map": "identity", "scale": "K^-0.5", "layout": "bthd"}
_LAT = "linear_attention_transformer.linear_attention_transformer"
_NAIVE = "fla.ops.linear_attn.naive"


def _because(reason: str, *checks: str) -> dict[str, str]:
    return dict.fromkeys(checks, reason)


_EPSILON_SHOWS = (
    "short_sequences",
    "value_on_integers",
    "value_on_reals",
    "value_on_random_reals",
    "row_normalisation",
    "dimensions",
    "long_sequences",
)
_GRADIENTS = ("gradient_value", "gradient_on_random_reals")

PUBLISHED = (
    Entry(
        "performer_pytorch",
        "performer_pytorch.performer_pytorch:causal_linear_attention_noncuda",
        "linear_attention",
        declare=_FEATURES,
        expect_failure=_because(
            "adds eps=1e-6 to every entry of the normalizer",
            *_EPSILON_SHOWS,
            "scaling_of_keys",
            "ranges",
            *_GRADIENTS,
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
        expect_failure=_because(
            "normalises features over the keys, not rows; rows sum to K^-0.5",
            "short_sequences",
            "value_on_reals",
            "value_on_random_reals",
            "row_normalisation",
            "dimensions",
            "long_sequences",
            "ranges",
            *_GRADIENTS,
        ),
    ),
    Entry(
        "linear_attention_transformer",
        "linkern.adapters.published:linear_attention_transformer_causal",
        "linear_attention",
        declare=_SOFTMAX_EXP,
        expect_failure=_because(
            "clamps the denominator at 1e-3", "row_normalisation", "ranges"
        ),
    ),
    Entry(
        "linear_attention_transformer",
        "linkern.adapters.published:linear_attention_transformer_causal_blind",
        "linear_attention",
        declare={**_SOFTMAX_EXP, "length_multiple_of": "64"},
        expect_failure=_because(
            "a query sees no key of its own bucket of 64, so the first 64 rows are 0",
            "value_on_reals",
            "value_on_random_reals",
            "row_normalisation",
            "dimensions",
            "long_sequences",
            "ranges",
            "nan_policy",
            *_GRADIENTS,
        ),
    ),
    Entry(
        "kornia",
        "linkern.adapters.published:kornia_loftr",
        "linear_attention_noncausal",
        declare={"layout": "bthd"},
        expect_failure=_because(
            "adds eps=1e-6 to the denominator",
            *_EPSILON_SHOWS,
            "ranges",
            *_GRADIENTS,
            "gradient_identities",
        ),
    ),
    Entry(
        "diffusers",
        "linkern.adapters.published:diffusers_sana",
        "linear_attention_noncausal",
        declare=_FEATURES,
        expect_failure=_because(
            "adds eps=1e-15 to the denominator", "scaling_of_keys", "ranges"
        ),
        dtypes=("float32",),
    ),
    Entry(
        "fla",
        f"{_NAIVE}:naive_recurrent_linear_attn",
        "linear_attention",
        declare=_FLA,
        expect_failure=_because(
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
        expect_failure=_because(
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
            *_GRADIENTS,
            "gradient_of_state",
            "finite_differences",
        ),
    ),
    Entry(
        "fla",
        f"{_NAIVE}:naive_chunk_linear_attn",
        "linear_attention",
        declare={**_FLA, "length_multiple_of": "64"},
        expect_failure=_because(
            "adds eps=1e-10 to the denominator",
            "value_on_integers",
            "value_on_reals",
            "value_on_random_reals",
            "row_normalisation",
            "dimensions",
            "long_sequences",
            "scaling_of_keys",
            "ranges",
            *_GRADIENTS,
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


def installed(op: str | None = None) -> list[Entry]:
    """Return the entries whose package is installed, for one operator or for all."""
    if op is not None and op not in OPERATORS:
        raise UsageError(nearest("operator", op, OPERATORS))
    return [
        entry
        for entry in (*OWN, *PUBLISHED)
        if find_spec(entry.package) is not None and op in (None, entry.op)
    ]
