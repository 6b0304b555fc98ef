"""Keywords that an operator does not have, answered with the one that is meant."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from inspect import Parameter

__all__ = ["keywords"]

# Names of the field, and the arguments that they stand for: of several, the first that
# the operator has.
_MEANT = {
    **dict.fromkeys(("q", "queries", "r", "receptance", "C", "Q"), ("query",)),
    **dict.fromkeys(("k", "keys", "B", "K"), ("key",)),
    **dict.fromkeys(("v", "values", "V"), ("value",)),
    "x": ("value", "query"),
    **dict.fromkeys(
        (
            "g",
            "gk",
            "gv",
            "g_gamma",
            "log_f",
            "f",
            "decay",
            "alpha",
            "gamma",
            "forget_gate",
            "gate",
            "ADT",
            "log_g",
            "log_G",
            "fgate_preact",
            "fgate",
        ),
        ("log_decay",),
    ),
    "w": ("write_gate", "log_decay"),
    "b": ("erase_gate", "beta"),
    "a": ("removal_rate",),
    "u": ("bonus", "value"),
    **dict.fromkeys(("i", "igate_preact", "igate"), ("input_gate",)),
    "log_alpha": ("log_decay",),
    "log_mu": ("momentum_log_decay",),
    "eta": ("momentum_beta",),
    "g_atk": ("preconditioner_log_decay",),
    "beta_atk": ("preconditioner_beta",),
    "log_atk_scale": ("center",),
    "log_x": ("log_range",),
    **dict.fromkeys(("delta", "DT"), ("dt",)),
    "A": ("log_decay_rate",),
    "D": ("skip",),
    **dict.fromkeys(("trap", "Trap"), ("trapezoid",)),
    **dict.fromkeys(("angles", "Angles"), ("angle",)),
    **dict.fromkeys(("MIMO_V", "mimo_v", "mimo_x"), ("value_mix",)),
    **dict.fromkeys(("MIMO_Out", "MIMO_O", "mimo_o"), ("output_mix",)),
    "p": ("auxiliary_key",),
    **dict.fromkeys(("kappa", "kk"), ("removal_key",)),
    "s": ("slots",),
    **dict.fromkeys(("lamb", "lambd"), ("ridge",)),
    **dict.fromkeys(("l", "level_scale", "lambdas"), ("level_scales",)),
    **dict.fromkeys(("scale_factor", "sm_scale", "softmax_scale"), ("scale",)),
    **dict.fromkeys(
        ("h0", "state", "init_state", "initial_states", "past_state"),
        ("initial_state",),
    ),
    **dict.fromkeys(
        ("cu_seqlen", "cu_seq_lens", "seqlens", "lengths", "offsets"), ("cu_seqlens",)
    ),
    **dict.fromkeys(("mode", "kernel"), ("form",)),
    **dict.fromkeys(("BT", "block_size"), ("chunk_size",)),
    "is_causal": ("causal",),
    **dict.fromkeys(("phi", "kernel_fn"), ("feature_map",)),
}
# Rules that whoever uses another name may not know.
_RULES = {
    "log_decay": "natural logarithm, <= 0",
    "initial_state": "a `State`, memory (..., K, V)",
    "cu_seqlens": "offsets that begin with 0, not lengths",
    "form": '"auto", "recurrent", "chunkwise" or "parallel"',
}
# Options of other libraries that have no counterpart here.
_INSTEAD = {
    **dict.fromkeys(
        ("output_final_state", "return_final_state", "return_state"),
        "leave it out: every result has its `state`",
    ),
    **dict.fromkeys(
        ("head_first", "layout"),
        "leave it out: time is the last axis but one, (..., heads, time, dim); of "
        "(batch, time, heads, dim) pass x.swapaxes(-3, -2)",
    ),
    **dict.fromkeys(
        ("state_v_first", "transpose_state_layout"),
        "leave it out: a memory is (..., K, V); of (..., V, K) pass x.swapaxes(-2, -1)",
    ),
    **dict.fromkeys(
        ("use_qk_l2norm_in_kernel", "qk_l2norm"),
        "leave it out, and divide `query` and `key` by their norms before the call",
    ),
    **dict.fromkeys(
        ("use_gate_in_kernel", "A_log", "dt_bias"),
        "leave it out, and pass log_decay = -exp(A_log) softplus(g + dt_bias)",
    ),
    **dict.fromkeys(
        ("use_beta_sigmoid_in_kernel", "allow_neg_eigval"),
        "leave it out, and pass `beta` as it is used, in [0, 2]",
    ),
    "eps": "leave it out: the reference adds no epsilon",
    "dtype": "leave it out: the output has the dtype of the inputs",
    **dict.fromkeys(("causal", "is_causal"), "leave it out: this operator is causal"),
    "normalize": "leave it out: only `linear_attention` can do with and without",
}


def keywords(name: str, passed: Iterable[str], known: Mapping[str, Parameter]) -> None:
    """Check that a function has all keywords that are passed to it.

    Parameters
    ----------
    name : str
        Name of the function.
    passed : iterable of str
        Keywords of a call.
    known : mapping of str to Parameter
        Parameters of the function; one that takes any keyword is left alone.

    Raises
    ------
    TypeError
        If it does not have one of them; the message names the argument that is meant.
    """
    for keyword in passed:
        if keyword not in known:
            if any(p.kind is p.VAR_KEYWORD for p in known.values()):
                return
            msg = f"`{keyword}` is not an argument of {name}; {_advice(keyword, known)}"
            raise TypeError(msg)


def _advice(keyword: str, known: Mapping[str, Parameter]) -> str:
    """Return the end of the sentence: what to write instead."""
    meant = [x for x in _MEANT.get(keyword, ()) if x in known]
    if not meant and keyword in _INSTEAD:
        return f"{_INSTEAD[keyword]}."
    close = meant or get_close_matches(keyword, known, n=1)
    if not close:
        return f"known: {', '.join(known)}."
    rule = _RULES.get(close[0])
    return f"did you mean `{close[0]}`{f' ({rule})' if rule else ''}?"
