"""The operators a target can claim to be, as the referee understands them.

An operator is data: the names of its inputs in order, the letters of their axes, and
what laws hold of it. Letters: ``b`` batch, ``h`` heads of queries and keys, ``g`` heads
of values (as many, or a multiple), ``t`` queries, ``s`` keys, ``k`` and ``v`` their
channels, ``m`` slots, ``l`` levels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["INPUT_NAMES", "OPERATORS", "Input", "Operator"]

# What linear attention is called with, in this order.
INPUT_NAMES = ("query", "key", "value")
# Letters of axes along which tokens lie, and of those that are heads.
TOKENS, HEADS = "ts", "hg"
INVERSE_ROOT_KEY_DIM = "K^-0.5"


@dataclass(frozen=True)
class Input:
    """One input of an operator.

    Parameters
    ----------
    name : str
        Its canonical name.
    axes : str
        A letter for each of its axes; those of tokens come after batch and heads.
    aliases : tuple of str
        How its parameter is called in the field, besides the name.
    optional : bool
        Whether it may be None, which means its neutral value.
    unless : str
        A parameter beside which the aliases mean something else.
    """

    name: str
    axes: str
    aliases: tuple[str, ...] = ()
    optional: bool = False
    unless: str = ""

    @property
    def per_token(self) -> bool:
        """Whether each token has its own, so that it is cut with the tokens."""
        return any(letter in self.axes for letter in TOKENS)

    @property
    def head_axis(self) -> int | None:
        """Which axis is that of the heads, if there is one."""
        found = (self.axes.index(a) for a in HEADS if a in self.axes)
        return next(found, None)

    @property
    def token_axis(self) -> int | None:
        """Which axis is that of the tokens, if there is one."""
        found = (self.axes.index(a) for a in TOKENS if a in self.axes)
        return next(found, None)


@dataclass(frozen=True)
class Operator:
    """One operator, called with its inputs in their order.

    Parameters
    ----------
    name : str
        What ``--op`` calls it.
    causal : bool
        Whether row i sums over keys 0..i only.
    summary : str
        Its equation in one line.
    inputs : tuple of Input
        What it is called with.
    scale : float or "K^-0.5"
        Factor on the scores where nothing is declared.
    normalised : bool
        Whether its rows are averages of the values.
    family : str or None
        Its name in `linkern.oracle.FAMILY`; None for linear attention, whose oracle
        knows feature maps and epsilons.
    state : tuple of tuple of str
        The axes of its memory in one head, and of its normalizer if it has one: letters
        of axes, ``1``, ``k+v``, or ``features`` for those of a polynomial of the key.
    erases : bool
        Whether it takes back what it wrote, so that an error can grow on its way.
    linear : tuple of str
        Inputs in each of which the output is linear.
    largest_key_dim : int or None
        Beyond which the exact answer takes too long, or nothing is proved of it.
    """

    name: str
    causal: bool
    summary: str
    inputs: tuple[Input, ...]
    scale: float | str = INVERSE_ROOT_KEY_DIM
    normalised: bool = False
    family: str | None = None
    state: tuple[tuple[str, ...], ...] = (("k", "v"),)
    erases: bool = False
    linear: tuple[str, ...] = ("query", "value")
    largest_key_dim: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its inputs."""
        return tuple(one.name for one in self.inputs)

    @property
    def has_scale(self) -> bool:
        """Whether there are scores that a scale could multiply."""
        return "query" in self.names

    @property
    def longest(self) -> int | None:
        """Beyond how many tokens the proof takes too long, or proves nothing."""
        if self.erases:
            # Several keys of a query are so many rows of the proof.
            return 40 if "s" in self.input("key").axes else 130
        if "ridge" in self.names:
            return 130
        return 300 if any("m" in one.axes for one in self.inputs) else None

    def input(self, name: str) -> Input:
        """Return the input of that name."""
        return next(one for one in self.inputs if one.name == name)

    def sizes(self, inputs: Mapping[str, Any]) -> dict[str, int]:
        """Return the size of each axis by its letter; 1 for those that no input has."""
        found = dict.fromkeys("bhgtskvml", 1)
        for one in reversed(self.inputs):
            if inputs.get(one.name) is not None:
                found |= zip(one.axes, inputs[one.name].shape, strict=False)
        present = {a for one in self.inputs for a in one.axes}
        for absent, like in (("t", "s"), ("s", "t"), ("h", "g"), ("g", "h")):
            if absent not in present:
                found[absent] = found[like]
        return {name: int(size) for name, size in found.items()}

    def state_shapes(self, sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
        """Return the shapes of memory and normalizer in one head."""
        key_dim, value_dim = sizes["k"], sizes["v"]
        known = {
            **sizes,
            "1": 1,
            "k+v": key_dim + value_dim,
            "features": 1 + key_dim + key_dim**2,
            "squares": key_dim**2,
        }
        return [tuple(known[axis] for axis in axes) for axes in self.state]


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
