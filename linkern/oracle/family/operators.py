"""The operators of the family by name."""

from linkern.oracle.family import additive, composed, erasing, levels, linear
from linkern.oracle.family.calls import Program

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
    "rwkv7": erasing.rwkv7,
    "dplr": erasing.dplr,
    "iplr": erasing.dplr,
    "delta_rule": erasing.delta_rule,
    "gated_delta_rule": erasing.delta_rule,
    "kda": erasing.delta_rule,
    "gdn2": erasing.gdn2,
    "comba": erasing.comba,
    "gated_delta_product": erasing.gated_delta_product,
    "oja": erasing.oja,
    "gsa": composed.gsa,
    "abc": composed.abc,
    "based": composed.based,
    "rebased": composed.rebased,
    "mesa": composed.mesa,
    "log_linear_attention": levels.log_linear,
}
