"""Who takes part: linkern, and whatever else is installed that computes the same.

A peer is a name and where to find the function that prepares its call. Nothing of it is
imported here: that happens in the process that is timed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal

from linkern.bench.tasks import Task

__all__ = [
    "COPY",
    "GEMM",
    "LIMITS",
    "OURS",
    "PEERS",
    "Peer",
    "left_out",
    "peer_named",
    "takes_part",
]

Meaning = Literal["attention", "sums", "exponential", "softmax", "limit"]

OURS = "linkern"
GEMM, COPY = "gemm", "copy"
_BOTH = ("float32", "float64")


@dataclass(frozen=True)
class Peer:
    """One way to compute a task.

    Parameters
    ----------
    name, summary : str
        As in ``--peer``; what it is, in a few words.
    prepare : str
        ``module:function`` below `linkern.bench.peers`. The function takes `Inputs`, a
        `Task` and `options`, and returns a `linkern.bench.worker.Prepared`.
    kinds : tuple of str
        Kinds of task that it can do.
    needs : tuple of str
        Modules without which it is left out.
    options : mapping
        Keyword arguments of `prepare`.
    dtypes : tuple of str
        What it can compute in.
    meaning : str
        What it computes, as in `linkern.bench.truth.answers`. Only those that answer
        with attention count as "the fastest peer".
    longest : int or None
        Length above which it is left out: it would take minutes, or all memory.
    multiple : int
        Lengths have to be multiples of it.
    tasks : tuple of str or None
        The only tasks that it takes part in; None for all of its kinds.
    threads : int or None
        How many, whatever the task says.
    traced : bool
        Whether `tracemalloc` sees its memory.
    """

    name: str
    summary: str
    prepare: str
    kinds: tuple[str, ...]
    needs: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    dtypes: tuple[str, ...] = _BOTH
    meaning: Meaning = "attention"
    longest: int | None = 65536
    multiple: int = 1
    tasks: tuple[str, ...] | None = None
    threads: int | None = None
    traced: bool = False


def _torch(name: str, summary: str, prepare: str, *kinds: str, **more: Any) -> Peer:
    return Peer(name, summary, f"torch_forms:{prepare}", kinds, ("torch",), **more)


def _fast(name: str, summary: str, prepare: str, *kinds: str, **more: Any) -> Peer:
    needs = ("torch", "fast_transformers")
    more = {"dtypes": ("float32",), **more}
    return Peer(name, summary, f"published:{prepare}", kinds, needs, **more)


LIMITS = (
    Peer(
        GEMM,
        "the limit: product of two 2048 x 2048 matrices, NumPy",
        "limits:gemm",
        ("causal", "full", "gradient", "decode"),
        meaning="limit",
        longest=None,
    ),
    Peer(
        COPY,
        "the limit: copying 128 MiB, NumPy",
        "limits:copy",
        ("causal", "full", "gradient", "decode"),
        meaning="limit",
        longest=None,
    ),
)

PEERS = (
    Peer(
        OURS,
        "linkern",
        "own:prepare",
        ("causal", "full", "gradient", "decode"),
        longest=None,
        traced=True,
    ),
    Peer(
        "linkern-one-thread",
        "linkern, one thread",
        "own:prepare",
        ("causal",),
        tasks=("one-head",),
        threads=1,
        traced=True,
    ),
    *(
        _torch(
            f"torch-loop-{size}",
            f"torch, a loop over chunks of {size}",
            "loop",
            "causal",
            "gradient",
            options={"size": size},
        )
        for size in (64, 128)
    ),
    *(
        _torch(
            f"torch-parallel-{size}",
            f"torch, all chunks of {size} at once",
            "parallel",
            "causal",
            "gradient",
            options={"size": size},
            multiple=size,
        )
        for size in (64, 128)
    ),
    _torch(
        "torch-compile",
        "torch.compile, all chunks of 64 at once",
        "compiled",
        "causal",
        "gradient",
        options={"size": 64},
        multiple=64,
    ),
    _torch("torch", "torch, two products", "products", "full"),
    _torch(
        "torch-sdpa",
        "softmax, torch SDPA",
        "softmax",
        "causal",
        "full",
        meaning="softmax",
        longest=16384,
    ),
    _torch("torch-in-place", "torch, baddbmm_ on the state", "steps", "decode"),
    Peer(
        "jax-scan",
        "JAX, jit of lax.scan over chunks of 64",
        "jax_forms:scan",
        ("causal", "gradient"),
        ("jax",),
        {"size": 64},
        multiple=64,
    ),
    Peer(
        "numpy-preallocated",
        "NumPy, out= everywhere",
        "own:preallocated",
        ("decode",),
    ),
    _fast("ft", "fast-transformers, layer", "layer", "causal", "gradient"),
    _fast(
        "ft-kernel",
        "fast-transformers, C++ kernel alone: no features, no sum of weights",
        "kernel",
        "causal",
        meaning="sums",
    ),
    _fast("ft-linear", "fast-transformers, layer", "linear_layer", "full"),
    _fast("ft-recurrent", "fast-transformers, layer", "recurrent", "decode"),
    Peer(
        "lat",
        "linear-attention-transformer, exp(x)",
        "published:buckets",
        ("causal",),
        ("torch", "linear_attention_transformer"),
        meaning="exponential",
        longest=4096,
    ),
    Peer(
        "performer",
        "performer-pytorch, without its CUDA kernel",
        "published:performer",
        ("causal", "full"),
        ("torch", "performer_pytorch"),
        longest=4096,
    ),
)


def peer_named(name: str) -> Peer | None:
    """Return the peer of a name, or None.

    Examples
    --------
    >>> peer_named("linkern").meaning
    'attention'
    """
    return next((peer for peer in (*PEERS, *LIMITS) if peer.name == name), None)


def takes_part(peer: Peer, task: Task) -> bool:
    """Return whether a peer can do a task, and is installed."""
    return (
        task.kind in peer.kinds
        and task.dtype in peer.dtypes
        and (peer.tasks is None or task.name in peer.tasks)
        and all(find_spec(module) is not None for module in peer.needs)
    )


def left_out(peer: Peer, length: int) -> str | None:
    """Return why a peer is not measured at a length; None if it is."""
    if peer.longest is not None and length > peer.longest:
        return f"left out above {peer.longest} tokens"
    if length % peer.multiple:
        return f"takes multiples of {peer.multiple} tokens"
    return None
