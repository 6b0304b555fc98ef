"""The operators of the family by name."""

from linkern.oracle.calls import Program
from linkern.oracle.programs import additive, composed, delta, levels, linear

__all__ = ["PROGRAMS"]

PROGRAMS: dict[str, Program] = {
    "linear_attention": linear.linear_attention,
    "linear_attention_noncausal": linear.linear_attention,
    "retention": additive.per_head,
    "lightning_attention": additive.per_head,
    "simple_gla": additive.simple_gla,
    "gla": additive.gla,
    "hgrn": additive.hgrn,
    "rwkv4": additive.rwkv4,
    "rwkv6": additive.rwkv6,
    "rwkv7": delta.rwkv7,
    "dplr": delta.dplr,
    "iplr": delta.dplr,
    "delta_rule": delta.delta_rule,
    "gated_delta_rule": delta.delta_rule,
    "kda": delta.delta_rule,
    "gdn2": delta.gdn2,
    "comba": delta.comba,
    "gated_delta_product": delta.gated_delta_product,
    "oja": delta.oja,
    "gsa": composed.gsa,
    "abc": composed.abc,
    "based": composed.based,
    "rebased": composed.rebased,
    "mesa": composed.mesa,
    "log_linear_attention": levels.log_linear,
}
