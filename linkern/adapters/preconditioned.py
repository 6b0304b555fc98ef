"""Calls of fla-core's preconditioned delta rules, head by head."""

from importlib import import_module
from math import exp
from typing import Any

from linkern.adapters.calling import published, tokens_first

__all__ = ["head_by_head"]


def head_by_head(
    form: str,
    tokens: tuple[Any, ...],
    sums: tuple[Any, Any],
    heads: tuple[Any, Any],
    state: Any,
    **options: Any,
) -> Any:
    """Call a preconditioned delta rule of fla-core for each head.

    Its range is a number of Python, not one of each head.

    Parameters
    ----------
    form : str
        Module and beginning of the name of a function. The package has one of KDA for
        log-decays of channels, another one for those of tokens.
    tokens, sums, heads : tuple of array
        Query, key, value, log-decay and beta; log-decay and beta of the sums of
        squares; center and logarithm of the range, of each head.
    state : pair of array, or None
        Memory and sums of squares before the first token.
    **options
        Keyword arguments of each call.
    """
    query, key, _, log_decay, _ = tokens
    rule = "kda" if log_decay.ndim == key.ndim else "gated_delta_rule"
    module, _, name = form.partition(".")
    function = published(f"fla.ops.precond_{rule}.{module}", f"{name}_precond_{rule}")
    names = ("q", "k", "v", "g", "beta", "g_atk", "beta_atk")
    rows = dict(zip(names, tokens_first(*tokens, *sums), strict=True))
    center, log_range = heads
    parts = []
    for h in range(query.shape[1]):
        at = slice(h, h + 1)
        # The decorator that makes arrays contiguous is unwrapped.
        one = {name: x[:, :, at].contiguous() for name, x in rows.items()}
        first = (None, None) if state is None else state
        memory, squares = (x if x is None else x[:, at].contiguous() for x in first)
        parts.append(
            function(
                **one,
                initial_state=memory,
                initial_A_state=squares,
                output_final_state=True,
                x=exp(float(log_range[h].detach())),
                log_atk_scale=center[at],
                **options,
            )
        )
    cat = import_module("torch").cat
    outputs, memories, squares = zip(*parts, strict=True)
    output = cat(outputs, dim=2).transpose(1, 2)
    return output, (cat(memories, dim=1), cat(squares, dim=1))
