"""The named operators: each a docstring and a few lines of data."""

from linkern.operators.delta import (
    comba,
    delta_rule,
    gated_delta_product,
    gated_delta_rule,
    gdn2,
    kda,
    oja,
)
from linkern.operators.gated import (
    gla,
    lightning_attention,
    retention,
    simple_gla,
    ssd,
)
from linkern.operators.levels import log_linear_attention
from linkern.operators.linear import linear_attention
from linkern.operators.low_rank import dplr, iplr, rwkv7
from linkern.operators.matrix_memory import mlstm
from linkern.operators.momentum import momentum_delta_rule
from linkern.operators.polynomial import based, power_retention, rebased
from linkern.operators.preconditioned import (
    preconditioned_gated_delta_rule,
    preconditioned_kda,
)
from linkern.operators.recurrent import hgrn, rwkv4, rwkv6
from linkern.operators.regression import mesa
from linkern.operators.slots import abc, gsa
from linkern.operators.state_space import selective_scan
from linkern.operators.step import linear_attention_step
from linkern.operators.trapezoidal import mamba3, mamba3_mimo

__all__ = [
    "abc",
    "based",
    "comba",
    "delta_rule",
    "dplr",
    "gated_delta_product",
    "gated_delta_rule",
    "gdn2",
    "gla",
    "gsa",
    "hgrn",
    "iplr",
    "kda",
    "lightning_attention",
    "linear_attention",
    "linear_attention_step",
    "log_linear_attention",
    "mamba3",
    "mamba3_mimo",
    "mesa",
    "mlstm",
    "momentum_delta_rule",
    "oja",
    "power_retention",
    "preconditioned_gated_delta_rule",
    "preconditioned_kda",
    "rebased",
    "retention",
    "rwkv4",
    "rwkv6",
    "rwkv7",
    "selective_scan",
    "simple_gla",
    "ssd",
]
