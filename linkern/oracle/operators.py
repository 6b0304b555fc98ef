"""The operators: one record for each, by name in `OPERATORS`.

A program is a few lines on a `tape` of `balls`; the recurrence is one operation of it
(`scan`), and how far any order of its sums can be from it is derived in `enclosures`.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from linkern.oracle.default_decays import lightning_decays, retention_decays
from linkern.oracle.inputs import Input, Reduction
from linkern.oracle.operator import Operator
from linkern.oracle.programs import (
    additive,
    composed,
    delta,
    levels,
    mlstm,
    momentum,
    preconditioned,
    state_space,
    trapezoidal,
)
from linkern.oracle.programs.linear import linear_attention

__all__ = ["OPERATORS"]


def _linear_attention(name: str, *, causal: bool) -> Operator:
    upto = "_{j<=i}" if causal else "_j"
    return Operator(
        name,
        (
            Input("query", "bhtk", ("q",)),
            Input("key", "bhsk", ("k",)),
            Input("value", "bhsv", ("v",)),
        ),
        f"o_i = phi(q_i)^T sum{upto} phi(k_j) v_j^T / "
        f"phi(q_i)^T sum{upto} phi(k_j), phi = elu + 1",
        linear_attention,
        causal=causal,
        scale=1.0,
        state=(("k", "v"), ("k",)),
        feature_map=True,
        normalised=True,
        linear=("value",),
        state_is_sum=True,
        neutral={},
    )


QUERY = Input("query", "bhtk", ("q", "queries", "r", "receptance"))
# Its products with keys enter a softmax.
SCORES = replace(QUERY, draw="score")
KEY = Input("key", "bhtk", ("k", "keys"))
VALUE = Input("value", "bgtv", ("v", "values"))
TRIPLE = (QUERY, KEY, VALUE)
_DECAYS = ("g", "log_g", "log_G", "log_f", "decay", "gate")
_FORGET_GATES = ("f", "fgate_preact", "forget_gate", "fgate")
DECAY = Input("log_decay", "bgt", _DECAYS, optional=True)
# Powers of scores that cancel are as good as zero, and so is their sum.
_POSITIVE = (replace(QUERY, draw="positive"), replace(KEY, draw="positive"))
KEY_DECAY = Input("log_decay", "bgtk", (*_DECAYS, "gk", "w"), optional=True)
VALUE_DECAY = Input("log_decay", "bgtv", (*_DECAYS, "gv"), optional=True)
BETA = Input("beta", "bgt", ("b",), optional=True)
BONUS = Input("bonus", "gk", ("u",), optional=True)
# What a key that is written is scaled by.
PRECONDITIONER = (
    Input(
        *("preconditioner_log_decay", "bgt", ("g_atk",)),
        optional=True,
        draw="log_decay",
    ),
    Input("preconditioner_beta", "bgt", ("beta_atk",), optional=True),
    Input("center", "g", ("log_atk_scale",), optional=True),
    Input("log_range", "g", ("log_x",), optional=True),
)
# How a momentum forgets, and how much of a correction it takes.
MOMENTUM = (
    # Not left out: a momentum that forgets nothing runs away, and one that takes all.
    Input("momentum_log_decay", "bgt", ("log_mu",), draw="log_decay"),
    BETA,
    Input("momentum_beta", "bgt", ("eta",)),
)
UNTIED = (Input("a", "bgtk"), Input("b", "bgtk"))
# Mamba-3, whose inputs are those of a state space model.
_ROTATED = (
    replace(QUERY, aliases=("Q", "C", "q")),
    replace(KEY, aliases=("K", "B", "k")),
    replace(VALUE, aliases=("V", "x", "v")),
)
_TRAPEZOIDAL = (
    Input("angle", "bgtp", ("Angles", "angles")),
    Input("dt", "bgt", ("DT",)),
    replace(DECAY, aliases=("ADT", *_DECAYS)),
    Input("trapezoid", "bgt", ("Trap", "trap"), optional=True),
)
SLOTS = Input("slots", "bgtm", ("s",))
_MEMORY_OF_SLOTS = ("m", "k+v")


_ADDITIVE: dict[str, Any] = {"linear": ("query", "key", "value")}
_ERASING: dict[str, Any] = {"erases": True}
# Inputs of reductions and of tokens that write.
_OPEN = {"log_decay": 0.0}
_NO_RATE, _FULL_RATE = {"beta": 0.0}, {"beta": 1.0}
_SAME_DECAY = {"log_decay": "log_decay"}
_STILL = {"log_decay_rate": 0.0}
# Inputs of tokens that leave the memory as it is: beside one, e^-200 is nothing.
_SILENT, _NO_WEIGHT = {"value": 0.0} | _OPEN, -200.0
_UNRATED = _NO_RATE | _OPEN
_CAUSAL = (
    Operator(
        "retention",
        TRIPLE,
        "S = e^{g_h} S + k v^T, g_h = log(1 - 2^(-5-h)); o = scale q^T S",
        additive.per_head,
        **_ADDITIVE,
        reversal=1,
        inexact="its decays are no powers of two",
        defaults={"log_decay": retention_decays},
    ),
    Operator(
        "lightning_attention",
        TRIPLE,
        "S = e^{g_h} S + k v^T, g_h = -(8/H) h; o = scale q^T S",
        additive.per_head,
        **_ADDITIVE,
        reversal=1,
        inexact="its decays are no powers of two",
        defaults={"log_decay": lightning_decays},
    ),
    Operator(
        "simple_gla",
        (*TRIPLE, DECAY),
        "S = e^{g_t} S + k v^T; o = scale q^T S",
        additive.simple_gla,
        neutral=_SILENT,
        **_ADDITIVE,
        reversal=1,
        unit_writes={},
    ),
    Operator(
        "gla",
        (*TRIPLE, KEY_DECAY),
        "S = diag(e^{g_t}) S + k v^T; o = scale q^T S",
        additive.gla,
        neutral=_SILENT,
        **_ADDITIVE,
        reversal=1,
        unit_writes={},
        reductions=(
            Reduction("simple_gla", spread=_SAME_DECAY, first_channels=_SAME_DECAY),
        ),
    ),
    Operator(
        "hgrn",
        (Input("value", "bgtv", ("v", "x")), VALUE_DECAY),
        "h = e^{g_t} h + x; o = h",
        additive.hgrn,
        neutral=_SILENT,
        scale=1.0,
        state=(("1", "v"),),
        linear=("value",),
    ),
    Operator(
        "rwkv4",
        (
            Input("key", "bgtv", ("k",), draw="logit"),
            VALUE,
            Input("log_decay", "gv", (*_DECAYS, "w")),
            Input("bonus", "gv", ("u",), optional=True, draw="logit"),
        ),
        "o = (N + e^{u+k} v) / (D + e^{u+k}); then N = e^w N + e^k v, D = e^w D + e^k",
        additive.rwkv4,
        neutral={"key": _NO_WEIGHT} | _OPEN,
        scale=1.0,
        normalised=True,
        state=(("1", "v"), ("v",)),
        linear=("value",),
        log_normalizer=True,
        inexact="its weights are exponentials",
    ),
    Operator(
        "rwkv6",
        (*TRIPLE, KEY_DECAY, BONUS),
        "o = scale q^T (S + (u k) v^T); then S = diag(e^{w_t}) S + k v^T",
        additive.rwkv6,
        neutral=_SILENT,
        **_ADDITIVE,
        reversal=0,
        unit_writes={},
    ),
    Operator(
        "rwkv7",
        (
            *TRIPLE,
            KEY_DECAY,
            Input("removal_key", "bgtk", ("kappa", "kk")),
            Input("removal_rate", "bgtk", ("a",), unless="b"),
        ),
        "S = diag(e^{w_t}) S - (a kappa) (kappa^T S) + k v^T; o = scale q^T S",
        delta.rwkv7,
        neutral={"removal_rate": 0.0} | _SILENT,
        scale=1.0,
        erases=True,
        early_erase=True,
        **_ADDITIVE,
        unit_writes={"removal_rate": 0.0},
        reductions=(Reduction("gla", {"removal_rate": 0.0}),),
    ),
    Operator(
        "dplr",
        (*TRIPLE, *UNTIED, KEY_DECAY),
        "S = diag(e^{g_t}) S + b (a^T S) + k v^T; o = scale q^T S",
        delta.dplr,
        neutral={"b": 0.0} | _SILENT,
        erases=True,
        early_erase=True,
        **_ADDITIVE,
        unit_writes={"a": 0.0, "b": 0.0},
        reductions=(Reduction("iplr", _OPEN), Reduction("gla", {"b": 0.0})),
    ),
    Operator(
        "iplr",
        (*TRIPLE, *UNTIED),
        "S = S + b (a^T S) + k v^T; o = scale q^T S",
        delta.dplr,
        neutral={"b": 0.0, "value": 0.0},
        erases=True,
        early_erase=True,
        **_ADDITIVE,
        unit_writes={"a": 0.0, "b": 0.0},
        reductions=(Reduction("simple_gla", {"b": 0.0}),),
    ),
    Operator(
        "delta_rule",
        (*TRIPLE, BETA),
        "S = S + beta k (v - S^T k)^T; o = scale q^T S",
        delta.delta_rule,
        neutral=_NO_RATE,
        **_ERASING,
        unit_writes=_FULL_RATE,
        reductions=(Reduction("simple_gla", _NO_RATE, without_values=True),),
    ),
    Operator(
        "gated_delta_rule",
        (*TRIPLE, DECAY, BETA),
        "S = e^{g_t} S, S = S + beta k (v - S^T k)^T; o = scale q^T S",
        delta.delta_rule,
        neutral=_UNRATED,
        **_ERASING,
        unit_writes=_FULL_RATE,
        reductions=(
            Reduction("delta_rule", _OPEN),
            Reduction("simple_gla", _NO_RATE, without_values=True),
        ),
    ),
    Operator(
        "kda",
        (*TRIPLE, KEY_DECAY, BETA),
        "S = diag(e^{g_t}) S, S = S + beta k (v - S^T k)^T; o = scale q^T S",
        delta.delta_rule,
        neutral=_UNRATED,
        **_ERASING,
        unit_writes=_FULL_RATE,
        reductions=(
            Reduction(
                "gated_delta_rule", spread=_SAME_DECAY, first_channels=_SAME_DECAY
            ),
            Reduction("delta_rule", _OPEN),
            Reduction("gla", _NO_RATE, without_values=True),
        ),
    ),
    *(
        Operator(
            f"preconditioned_{plain}",
            (*TRIPLE, decay, BETA, *PRECONDITIONER),
            "A = e^{a_t} A + b_t k^2, w = k x^{-r/(1+|r|)}, r = log(A + 1e-6) - c; "
            f"{begun}, S = S + beta w (v - S^T k)^T; o = scale q^T S",
            preconditioned.preconditioned,
            neutral=_UNRATED
            | {"preconditioner_beta": 0.0, "preconditioner_log_decay": 0.0},
            **_ERASING,
            scales_keys=True,
            state=(("k", "v"), ("k",)),
            reductions=(Reduction(plain, {"log_range": 0.0}),),
        )
        for plain, decay, begun in (
            ("gated_delta_rule", DECAY, "S = e^{g_t} S"),
            ("kda", KEY_DECAY, "S = diag(e^{g_t}) S"),
        )
    ),
    Operator(
        "momentum_delta_rule",
        (*TRIPLE, replace(DECAY, aliases=("log_alpha", *_DECAYS)), *MOMENTUM),
        "S = e^{g_t} S, M = e^{h_t} M + r k (v - S^T k)^T, S = S + beta M; "
        "o = scale q^T S",
        momentum.momentum_delta_rule,
        neutral=_UNRATED | {"momentum_log_decay": 0.0, "momentum_beta": 0.0},
        **_ERASING,
        state=(("2k", "v"),),
        reductions=(
            Reduction(
                "gated_delta_rule",
                {"momentum_log_decay": -np.inf, "momentum_beta": 1.0},
            ),
        ),
    ),
    Operator(
        "gdn2",
        (
            *TRIPLE,
            KEY_DECAY,
            Input("erase_gate", "bgtk", ("b",), optional=True),
            Input("write_gate", "bgtv", ("w",), optional=True),
        ),
        "S = diag(e^{g_t}) S, S = S + k (w v - S^T (b k))^T; o = scale q^T S",
        delta.gdn2,
        neutral={"erase_gate": 0.0} | _SILENT,
        **_ERASING,
        unit_writes={"erase_gate": 1.0, "write_gate": 1.0},
        reductions=(
            Reduction(
                "kda",
                spread={"erase_gate": "erase_gate", "write_gate": "erase_gate"},
                first_channels={"beta": "erase_gate"},
            ),
            Reduction("gla", {"erase_gate": 0.0, "write_gate": 1.0}),
        ),
    ),
    Operator(
        "comba",
        (*TRIPLE, Input("auxiliary_key", "bhtk", ("p",)), DECAY, BETA),
        "S = e^{g_t} S + beta k (v - S^T p)^T, S read undecayed; o = scale q^T S",
        delta.comba,
        neutral=_UNRATED,
        **_ERASING,
        early_erase=True,
        unit_writes={"auxiliary_key": 0.0, "beta": 1.0},
        reductions=(Reduction("delta_rule", _OPEN, copies={"auxiliary_key": "key"}),),
    ),
    Operator(
        "gated_delta_product",
        (
            QUERY,
            Input("key", "bhsk", ("k",)),
            Input("value", "bgsv", ("v",)),
            DECAY,
            Input("beta", "bgs", ("b",), optional=True),
        ),
        "S = e^{g_t} S, n times S = S + beta k (v - S^T k)^T; o = scale q^T S",
        delta.gated_delta_product,
        neutral=_UNRATED,
        **_ERASING,
    ),
    Operator(
        "oja",
        (*TRIPLE, VALUE_DECAY, BETA),
        "S = S diag(e^{g_t}), S = S + beta (k - S v) v^T; o = scale q^T S",
        delta.oja,
        neutral=_UNRATED,
        erases=True,
        linear=("query", "key"),
        erase_along="value",
    ),
    Operator(
        "gsa",
        (
            SCORES,
            KEY,
            VALUE,
            SLOTS,
            Input("log_decay", "bgtm", _DECAYS, optional=True),
        ),
        "A = diag(e^{g_t}) A + s k^T, p = softmax(scale A q); "
        "B = diag(e^{g_t}) B + s v^T; o = B^T p",
        composed.gsa,
        neutral={"slots": 0.0} | _OPEN,
        state=(_MEMORY_OF_SLOTS,),
        linear=("value",),
        inexact="its softmax rounds",
    ),
    Operator(
        "abc",
        (SCORES, KEY, VALUE, replace(SLOTS, draw="logit")),
        "gsa with log_decay z_{t-1} - z_t, slots e^{s_t - z_t}, z_t = log sum e^{s_j}",
        composed.abc,
        neutral={"slots": _NO_WEIGHT},
        state=(_MEMORY_OF_SLOTS, ("m",)),
        linear=("value",),
        log_normalizer=True,
        inexact="its softmax rounds",
    ),
    Operator(
        "based",
        TRIPLE,
        "o_i = sum_{j<=i} w_ij v_j / sum_{j<=i} w_ij, w = 1 + x + x^2/2, "
        "x = scale q_i.k_j",
        composed.based,
        normalised=True,
        state=(("features", "v"), ("features",)),
        linear=("value",),
        largest_key_dim=64,
        state_is_sum=True,
        inexact="its weights are polynomials, by which it divides",
    ),
    Operator(
        "rebased",
        (*_POSITIVE, VALUE),
        "o_i = sum_{j<=i} w_ij v_j / sum_{j<=i} w_ij, w = (scale q_i.k_j)^2",
        composed.rebased,
        neutral={"key": 0.0},
        normalised=True,
        state=(("squares", "v"), ("squares",)),
        linear=("value",),
        largest_key_dim=64,
        state_is_sum=True,
        inexact="its weights are polynomials, by which it divides",
    ),
    *(
        Operator(
            name,
            (*_POSITIVE, VALUE, DECAY),
            "o_i = sum_{j<=i} w_ij v_j / sum_{j<=i} w_ij, "
            f"w = e^{{g_{{j+1}} + .. + g_i}} (scale q_i.k_j)^{degree}",
            partial(composed.power_retention, degree=degree),
            neutral={"key": 0.0} | _OPEN,
            normalised=True,
            state=((f"degree {degree}", "v"), (f"degree {degree}",)),
            linear=("value",),
            largest_key_dim=largest,
            inexact="its weights are polynomials, by which it divides",
            reductions=reductions,
        )
        for name, degree, largest, reductions in (
            ("power_retention", 2, 64, (Reduction("rebased", _OPEN),)),
            ("power_retention_4", 4, 8, ()),
        )
    ),
    Operator(
        "mesa",
        (
            QUERY,
            replace(KEY, draw="unit"),
            VALUE,
            DECAY,
            BETA,
            Input("ridge", "gk", ("lamb", "lambd"), optional=True),
        ),
        "A = e^{g_t} A + beta k k^T, B = e^{g_t} B + beta k v^T; "
        "o = scale B^T (A + diag(ridge))^{-1} q",
        composed.mesa,
        neutral=_UNRATED,
        scale=1.0,
        state=(("k", "k+v"),),
        largest_key_dim=48,
        inexact="it solves systems of equations",
    ),
    Operator(
        "mlstm",
        (
            # Normalisers that cancel are as good as zero, where no floor is above.
            replace(QUERY, draw="signed"),
            replace(KEY, draw="positive"),
            VALUE,
            Input(
                *("input_gate", "bgt", ("i", "igate_preact", "igate")),
                optional=True,
                draw="exponent",
            ),
            Input("log_decay", "bgt", (*_DECAYS, *_FORGET_GATES), optional=True),
        ),
        "C = e^{g_t} C + e^{i_t} k v^T, n = e^{g_t} n + e^{i_t} k; "
        "o = scale q^T C / max(|scale q^T n|, 1)",
        mlstm.mlstm,
        neutral={"input_gate": _NO_WEIGHT} | _OPEN,
        state=(("k", "v+1"), ("1",)),
        linear=("value",),
        log_normalizer=True,
        floored=True,
        inexact="its weights are exponentials",
        reductions=(Reduction("simple_gla", {"input_gate": 0.0}, small_scores=True),),
    ),
    Operator(
        "selective_scan",
        (
            replace(QUERY, aliases=("C", "q")),
            replace(KEY, aliases=("B", "k")),
            replace(VALUE, aliases=("x", "u", "v")),
            Input("dt", "bgtv", ("delta",)),
            Input("log_decay_rate", "gvk", ("A",)),
            Input("skip", "gv", ("D",), optional=True),
        ),
        "S = e^{dt_t A} * S + k (dt_t x_t)^T; o = scale q^T S + D x",
        state_space.selective_scan,
        neutral={"dt": 0.0},
        scale=1.0,
        linear=("value",),
        largest_key_dim=16,
        reductions=(Reduction("simple_gla", {"dt": 1.0, "skip": 0.0} | _STILL),),
    ),
    Operator(
        "mamba3",
        (*_ROTATED, *_TRAPEZOIDAL),
        "S = a_t S + (1 - s_t) dt_t a_t k_{t-1} v_{t-1}^T + s_t dt_t k_t v_t^T, "
        "q and k turned by the sum of pi tanh(angle) dt; o = scale q^T S",
        trapezoidal.mamba3,
        scale=1.0,
        state=(("k", "v"), ("p+k+v",)),
        reductions=(
            Reduction("simple_gla", {"angle": 0.0, "dt": 1.0, "trapezoid": 1.0}),
        ),
    ),
    Operator(
        "mamba3_mimo",
        (
            *_ROTATED,
            Input("value_mix", "grv", ("MIMO_V", "mimo_v", "mimo_x")),
            Input("output_mix", "grv", ("MIMO_Out", "MIMO_O", "mimo_o")),
            *_TRAPEZOIDAL,
        ),
        "mamba3 with R keys, R queries and values m_r * v a token, "
        "which share its gates; o = scale sum_r w_r * (S^T q_r)",
        trapezoidal.mamba3,
        scale=1.0,
        state=(("k/r", "v"), ("p+k+v",)),
    ),
    Operator(
        "log_linear_attention",
        (
            *TRIPLE,
            DECAY,
            Input("level_scales", "bgtl", ("l", "level_scale", "lambdas")),
        ),
        "o_t = scale sum_{j<=t} l_t[level(t, j)] e^{g_{j+1} + .. + g_t} (q_t.k_j) v_j",
        levels.log_linear,
        scale=1.0,
        state=(("l", "k", "v"),),
        **_ADDITIVE,
        reductions=(Reduction("simple_gla", {"level_scales": 1.0}),),
    ),
)
# The same operator under the name that others give it.
_ALIASES = {"ssd": "simple_gla"}

OPERATORS: dict[str, Operator] = {
    operator.name: operator
    for operator in (
        _linear_attention("linear_attention", causal=True),
        _linear_attention("linear_attention_noncausal", causal=False),
        *_CAUSAL,
    )
}
OPERATORS |= {alias: OPERATORS[name] for alias, name in _ALIASES.items()}
