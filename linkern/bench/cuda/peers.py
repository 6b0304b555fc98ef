"""Peers on a GPU: linkern, FLA's kernels, plain PyTorch, and copying as the limit."""

from typing import Any

from linkern.bench.peers import COPY, SOFTMAX, Peer
from linkern.bench.tasks import OURS

__all__ = ["LIMIT", "PEERS"]

_ALL = ("bfloat16", "float16", "float32")
_KINDS = ("causal", "delta", "kda", "gradient", "delta-gradient", "decode")


def _cupy(name: str, summary: str, prepare: str, **more: Any) -> Peer:
    prepare, more = f"cuda.cupy_peers:{prepare}", {"longest": None, **more}
    return Peer(name, summary, prepare, _KINDS, ("cupy",), dtypes=_ALL, **more)


def _torch(name: str, summary: str, prepare: str, *kinds: str, **more: Any) -> Peer:
    more = {"needs": ("torch",), "dtypes": _ALL, **more}
    return Peer(name, summary, f"cuda.torch_peers:{prepare}", kinds, **more)


def _fla(name: str, summary: str, prepare: str, *kinds: str, **more: Any) -> Peer:
    needs = ("torch", "triton", "fla")
    return _torch(name, f"FLA, {summary}", prepare, *kinds, needs=needs, **more)


LIMIT = _cupy(
    COPY, "the limit: copying 1 GiB, by CuPy or a kernel", "copy", meaning="limit"
)

PEERS = (
    _cupy(OURS, "linkern", "prepare"),
    *(
        _fla(
            f"fla-{form}",
            f"{form}_linear_attn with elu(x) + 1 and sums of weights",
            "fla",
            "causal",
            "gradient",
            options={"form": form},
        )
        for form in ("chunk", "fused_chunk")
    ),
    _fla(
        "fla-kernel",
        "chunk_linear_attn alone: no features, no sums of weights",
        "fla_kernel",
        "causal",
        meaning="sums",
    ),
    _fla(
        *("fla-delta", "chunk_gated_delta_rule", "fla_delta"),
        *("delta", "delta-gradient"),
    ),
    _fla("fla-kda", "chunk_kda", "fla_kda", "kda"),
    _fla(
        "fla-recurrent",
        "fused_recurrent_linear_attn alone: no features, no sums of weights",
        "fla_steps",
        "decode",
        meaning="sums",
    ),
    _torch(
        "torch-loop",
        "torch, a loop over chunks of 64, memory in float32",
        "loop",
        "causal",
        "gradient",
        options={"size": 64},
    ),
    _torch("torch-in-place", "torch, baddbmm_ on the memory", "steps", "decode"),
    _torch(
        *(SOFTMAX, "softmax, torch SDPA", "softmax", "causal"),
        meaning="softmax",
        longest=16384,
    ),
)
