"""The operators a target can claim to be, as the referee understands them."""

from typing import Any

from linkern.testing.spec.operator import INVERSE_ROOT_KEY_DIM, Input, Operator

__all__ = ["INPUT_NAMES", "INVERSE_ROOT_KEY_DIM", "OPERATORS", "Input", "Operator"]

# What linear attention is called with, in this order.
INPUT_NAMES = ("query", "key", "value")


def _of_linear_attention(name: str, *, causal: bool) -> Operator:
    upto = "_{j<=i}" if causal else "_j"
    return Operator(
        name,
        causal=causal,
        summary=f"o_i = phi(q_i)^T sum{upto} phi(k_j) v_j^T / "
        f"phi(q_i)^T sum{upto} phi(k_j), phi = elu + 1",
        inputs=(
            Input("query", "bhtk", ("q",)),
            Input("key", "bhsk", ("k",)),
            Input("value", "bhsv", ("v",)),
        ),
        scale=1.0,
        normalised=True,
        state=(("k", "v"), ("k",)),
        linear=("value",),
    )


QUERY = Input("query", "bhtk", ("q", "r", "receptance"))
KEY = Input("key", "bhtk", ("k",))
VALUE = Input("value", "bgtv", ("v",))
TRIPLE = (QUERY, KEY, VALUE)
_DECAYS = ("g", "log_f", "decay")
DECAY = Input("log_decay", "bgt", _DECAYS, optional=True)
KEY_DECAY = Input("log_decay", "bgtk", (*_DECAYS, "gk", "w"), optional=True)
VALUE_DECAY = Input("log_decay", "bgtv", (*_DECAYS, "gv"), optional=True)
BETA = Input("beta", "bgt", ("b",), optional=True)
BONUS = Input("bonus", "gk", ("u",), optional=True)
UNTIED = (Input("a", "bgtk"), Input("b", "bgtk"))
SLOTS = Input("slots", "bgtm", ("s",))
_MEMORY_OF_SLOTS = ("m", "k+v")


def _operator(
    name: str, inputs: tuple[Input, ...], summary: str, **of_operator: Any
) -> Operator:
    return Operator(
        name, causal=True, summary=summary, inputs=inputs, family=name, **of_operator
    )


_ADDITIVE: dict[str, Any] = {"linear": ("query", "key", "value")}
_ERASING: dict[str, Any] = {"erases": True}
_FAMILY = (
    _operator(
        "retention",
        TRIPLE,
        "S = e^{g_h} S + k v^T, g_h = log(1 - 2^(-5-h)); o = scale q^T S",
        **_ADDITIVE,
    ),
    _operator(
        "lightning_attention",
        TRIPLE,
        "S = e^{g_h} S + k v^T, g_h = -(8/H) h; o = scale q^T S",
        **_ADDITIVE,
    ),
    _operator(
        "simple_gla",
        (*TRIPLE, DECAY),
        "S = e^{g_t} S + k v^T; o = scale q^T S",
        **_ADDITIVE,
    ),
    _operator(
        "gla",
        (*TRIPLE, KEY_DECAY),
        "S = diag(e^{g_t}) S + k v^T; o = scale q^T S",
        **_ADDITIVE,
    ),
    _operator(
        "hgrn",
        (Input("value", "bgtv", ("v", "x")), VALUE_DECAY),
        "h = e^{g_t} h + x; o = h",
        scale=1.0,
        state=(("1", "v"),),
        linear=("value",),
    ),
    _operator(
        "rwkv4",
        (
            Input("key", "bgtv", ("k",)),
            VALUE,
            Input("log_decay", "gv", (*_DECAYS, "w")),
            Input("bonus", "gv", ("u",), optional=True),
        ),
        "o = (N + e^{u+k} v) / (D + e^{u+k}); then N = e^w N + e^k v, D = e^w D + e^k",
        scale=1.0,
        normalised=True,
        state=(("1", "v"), ("v",)),
        linear=("value",),
    ),
    _operator(
        "rwkv6",
        (*TRIPLE, KEY_DECAY, BONUS),
        "o = scale q^T (S + (u k) v^T); then S = diag(e^{w_t}) S + k v^T",
        **_ADDITIVE,
    ),
    _operator(
        "rwkv7",
        (
            *TRIPLE,
            KEY_DECAY,
            Input("removal_key", "bgtk", ("kappa", "kk")),
            Input("removal_rate", "bgtk", ("a",), unless="b"),
        ),
        "S = diag(e^{w_t}) S - (a kappa) (kappa^T S) + k v^T; o = scale q^T S",
        scale=1.0,
        erases=True,
        **_ADDITIVE,
    ),
    _operator(
        "dplr",
        (*TRIPLE, *UNTIED, KEY_DECAY),
        "S = diag(e^{g_t}) S + b (a^T S) + k v^T; o = scale q^T S",
        erases=True,
        **_ADDITIVE,
    ),
    _operator(
        "iplr",
        (*TRIPLE, *UNTIED),
        "S = S + b (a^T S) + k v^T; o = scale q^T S",
        erases=True,
        **_ADDITIVE,
    ),
    _operator(
        "delta_rule",
        (*TRIPLE, BETA),
        "S = S + beta k (v - S^T k)^T; o = scale q^T S",
        **_ERASING,
    ),
    _operator(
        "gated_delta_rule",
        (*TRIPLE, DECAY, BETA),
        "S = e^{g_t} S, S = S + beta k (v - S^T k)^T; o = scale q^T S",
        **_ERASING,
    ),
    _operator(
        "kda",
        (*TRIPLE, KEY_DECAY, BETA),
        "S = diag(e^{g_t}) S, S = S + beta k (v - S^T k)^T; o = scale q^T S",
        **_ERASING,
    ),
    _operator(
        "gdn2",
        (
            *TRIPLE,
            KEY_DECAY,
            Input("erase_gate", "bgtk", ("b",), optional=True),
            Input("write_gate", "bgtv", ("w",), optional=True),
        ),
        "S = diag(e^{g_t}) S, S = S + k (w v - S^T (b k))^T; o = scale q^T S",
        **_ERASING,
    ),
    _operator(
        "comba",
        (*TRIPLE, Input("auxiliary_key", "bhtk", ("p",)), DECAY, BETA),
        "S = e^{g_t} S + beta k (v - S^T p)^T, S read undecayed; o = scale q^T S",
        **_ERASING,
    ),
    _operator(
        "gated_delta_product",
        (
            QUERY,
            Input("key", "bhsk", ("k",)),
            Input("value", "bgsv", ("v",)),
            DECAY,
            Input("beta", "bgs", ("b",), optional=True),
        ),
        "S = e^{g_t} S, n times S = S + beta k (v - S^T k)^T; o = scale q^T S",
        **_ERASING,
    ),
    _operator(
        "oja",
        (*TRIPLE, VALUE_DECAY, BETA),
        "S = S diag(e^{g_t}), S = S + beta (k - S v) v^T; o = scale q^T S",
        erases=True,
        linear=("query", "key"),
    ),
    _operator(
        "gsa",
        (*TRIPLE, SLOTS, Input("log_decay", "bgtm", _DECAYS, optional=True)),
        "A = diag(e^{g_t}) A + s k^T, p = softmax(scale A q); "
        "B = diag(e^{g_t}) B + s v^T; o = B^T p",
        state=(_MEMORY_OF_SLOTS,),
        linear=("value",),
    ),
    _operator(
        "abc",
        (*TRIPLE, SLOTS),
        "gsa with log_decay z_{t-1} - z_t, slots e^{s_t - z_t}, z_t = log sum e^{s_j}",
        state=(_MEMORY_OF_SLOTS, ("m",)),
        linear=("value",),
    ),
    _operator(
        "based",
        TRIPLE,
        "o_i = sum_{j<=i} w_ij v_j / sum_{j<=i} w_ij, w = 1 + x + x^2/2, "
        "x = scale q_i.k_j",
        normalised=True,
        state=(("features", "v"), ("features",)),
        linear=("value",),
        largest_key_dim=8,
    ),
    _operator(
        "rebased",
        TRIPLE,
        "o_i = sum_{j<=i} w_ij v_j / sum_{j<=i} w_ij, w = (scale q_i.k_j)^2",
        normalised=True,
        state=(("squares", "v"), ("squares",)),
        linear=("value",),
        largest_key_dim=8,
    ),
    _operator(
        "mesa",
        (
            *TRIPLE,
            DECAY,
            BETA,
            Input("ridge", "gk", ("lamb", "lambd"), optional=True),
        ),
        "A = e^{g_t} A + beta k k^T, B = e^{g_t} B + beta k v^T; "
        "o = scale B^T (A + diag(ridge))^{-1} q",
        scale=1.0,
        state=(("k", "k+v"),),
        largest_key_dim=8,
    ),
    _operator(
        "log_linear_attention",
        (
            *TRIPLE,
            DECAY,
            Input("level_scales", "bgtl", ("l", "level_scale", "lambdas")),
        ),
        "o_t = scale sum_{j<=t} l_t[level(t, j)] e^{g_{j+1} + .. + g_t} (q_t.k_j) v_j",
        scale=1.0,
        state=(("l", "k", "v"),),
        **_ADDITIVE,
    ),
)
# The same operator under the name that others give it.
_ALIASES = {"ssd": "simple_gla"}

OPERATORS: dict[str, Operator] = {
    operator.name: operator
    for operator in (
        _of_linear_attention("linear_attention", causal=True),
        _of_linear_attention("linear_attention_noncausal", causal=False),
        *_FAMILY,
    )
}
OPERATORS |= {alias: OPERATORS[name] for alias, name in _ALIASES.items()}
