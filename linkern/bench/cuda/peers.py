"""Who takes part on a GPU, as data: linkern, kernels of others, plain PyTorch."""

from typing import Any

from linkern.bench.peers import COPY, OURS, Peer

__all__ = ["LIMIT", "PEERS", "peer_named"]

_ALL = ("bfloat16", "float16", "float32")
_KINDS = ("causal", "gradient", "decode")


def _fla(name: str, summary: str, function: str, *kinds: str, **more: Any) -> Peer:
    needs = ("torch", "triton", "fla")
    return Peer(name, summary, f"torch_forms:{function}", kinds, needs, **more)


LIMIT = Peer(
    COPY,
    "the limit: copying 1 GiB, CuPy",
    "own:copy",
    _KINDS,
    ("cupy",),
    dtypes=_ALL,
    meaning="limit",
    longest=None,
)

PEERS = (
    Peer(OURS, "linkern", "own:prepare", _KINDS, ("cupy",), dtypes=_ALL, longest=None),
    *(
        _fla(
            f"fla-{form}",
            f"FLA, {form}_linear_attn with elu(x) + 1 and sums of weights",
            "fla",
            "causal",
            "gradient",
            options={"form": form},
            dtypes=_ALL,
        )
        for form in ("chunk", "fused_chunk")
    ),
    _fla(
        "fla-kernel",
        "FLA, chunk_linear_attn alone: no features, no sums of weights",
        "fla_kernel",
        "causal",
        dtypes=_ALL,
        meaning="sums",
    ),
    _fla(
        "fla-recurrent",
        "FLA, fused_recurrent_linear_attn alone: no features, no sums of weights",
        "fla_steps",
        "decode",
        dtypes=_ALL,
        meaning="sums",
    ),
    Peer(
        "torch-loop",
        "torch, a loop over chunks of 64, memory in float32",
        "torch_forms:loop",
        ("causal", "gradient"),
        ("torch",),
        {"size": 64},
        dtypes=_ALL,
    ),
    Peer(
        "torch-in-place",
        "torch, baddbmm_ on the memory",
        "torch_forms:steps",
        ("decode",),
        ("torch",),
        dtypes=_ALL,
    ),
    Peer(
        "torch-sdpa",
        "softmax, torch SDPA",
        "torch_forms:softmax",
        ("causal",),
        ("torch",),
        dtypes=_ALL,
        meaning="softmax",
        longest=16384,
    ),
)


def peer_named(name: str) -> Peer | None:
    """Return the peer of a name, or None.

    Examples
    --------
    >>> peer_named("torch-sdpa").meaning
    'softmax'
    """
    return next((peer for peer in (*PEERS, LIMIT) if peer.name == name), None)
