"""Peers on a CPU: linkern, PyTorch, JAX, NumPy and published packages."""

from typing import Any

from linkern.bench.peers import COPY, GEMM, SOFTMAX, Peer
from linkern.bench.tasks import OURS

__all__ = [
    "DELTA_ON_JAX",
    "IN_MEMORY",
    "LIMITS",
    "ON_JAX",
    "OUT_OF_CORE",
    "PEERS",
    "STREAM",
]

ON_JAX, DELTA_ON_JAX = "linkern-jax", "linkern-jax-delta"
OUT_OF_CORE, STREAM, IN_MEMORY = "dask-zarr", "dask-stream", "linkern-in-memory"
_EVERY = ("causal", "full", "gradient", "decode")
_CHUNKED = ("causal", "gradient")
_COMPILED = ("compile", "compile-delta")


def _torch(name: str, summary: str, prepare: str, *kinds: str, **more: Any) -> Peer:
    return Peer(name, summary, f"cpu.torch_peers:{prepare}", kinds, ("torch",), **more)


def _package(name: str, summary: str, prepare: str, *kinds: str, **more: Any) -> Peer:
    more = {"needs": ("torch", "fast_transformers"), "dtypes": ("float32",), **more}
    return Peer(name, summary, f"cpu.published_packages:{prepare}", kinds, **more)


def _limit(name: str, summary: str) -> Peer:
    summary, prepare = f"the limit: {summary}, NumPy", f"cpu.limits:{name}"
    kinds = (*_EVERY, *_COMPILED, "stream")
    return Peer(name, summary, prepare, kinds, meaning="limit", longest=None)


LIMITS = (
    _limit(GEMM, "product of two 2048 x 2048 matrices"),
    _limit(COPY, "copying 128 MiB"),
)

PEERS = (
    Peer(
        *(OURS, "linkern", "cpu.numpy_peers:prepare", _EVERY), longest=None, traced=True
    ),
    Peer(
        "linkern-one-thread",
        "linkern, one thread",
        "cpu.numpy_peers:prepare",
        ("causal",),
        tasks=("one-head",),
        threads=1,
        traced=True,
    ),
    *(
        _torch(
            *(name, f'linkern on tensors, form="{form}"', "ours", *_CHUNKED),
            options={"form": form},
            tasks=("torch-cpu", "torch-cpu-gradient"),
        )
        for name, form in (
            ("linkern-tensors", "auto"),
            ("linkern-tensors-chunkwise", "chunkwise"),
        )
    ),
    *(
        _torch(
            f"torch-loop-{size}",
            f"torch, a loop over chunks of {size}",
            "loop",
            *_CHUNKED,
            options={"size": size},
        )
        for size in (64, 128)
    ),
    *(
        _torch(
            f"torch-parallel-{size}",
            f"torch, all chunks of {size} at once",
            "parallel",
            *_CHUNKED,
            options={"size": size},
            multiple=size,
        )
        for size in (64, 128)
    ),
    _torch(
        "torch-compile",
        "torch.compile, all chunks of 64 at once",
        "compiled",
        *_CHUNKED,
        options={"size": 64},
        multiple=64,
    ),
    _torch("torch", "torch, two products", "products", "full"),
    _torch(
        *(SOFTMAX, "softmax, torch SDPA", "softmax", "causal", "full"),
        meaning="softmax",
        longest=16384,
    ),
    _torch("torch-in-place", "torch, baddbmm_ on the state", "steps", "decode"),
    Peer(
        ON_JAX,
        "linkern, JAX under jit",
        "cpu.jax_peers:linkern_jitted",
        (*_CHUNKED, "compile"),
        ("jax",),
        tasks=("jax-run", "jax-run-gradient", "jax-compile"),
    ),
    Peer(
        "jax-scan",
        "JAX, jit of lax.scan over chunks of 64",
        "cpu.jax_peers:scan",
        (*_CHUNKED, "compile"),
        ("jax",),
        {"size": 64},
        multiple=64,
    ),
    Peer(
        DELTA_ON_JAX,
        "linkern, JAX under jit",
        "cpu.jax_peers:delta_jitted",
        ("compile-delta",),
        ("jax",),
        meaning="unjudged",
    ),
    Peer(
        "jax-scan-delta",
        "JAX, jit of lax.scan over chunks of 64",
        "cpu.jax_peers:delta_scan",
        ("compile-delta",),
        ("jax",),
        {"size": 64},
        meaning="unjudged",
        multiple=64,
    ),
    Peer(
        "numpy-preallocated",
        "NumPy, out= everywhere",
        "cpu.numpy_peers:preallocated",
        ("decode",),
    ),
    Peer(
        OUT_OF_CORE,
        "linkern on Dask arrays, Zarr to Zarr, chunks of 65,536 tokens",
        "cpu.dask_peers:gradient",
        ("gradient",),
        ("dask", "zarr"),
        {"chunk": 65536},
        longest=None,
        tasks=("out-of-core-gradient",),
        traced=True,
    ),
    Peer(
        STREAM,
        "linkern on Dask arrays, Zarr to Zarr, chunks of 65,536 tokens",
        "cpu.dask_peers:stream",
        ("stream",),
        ("dask", "zarr"),
        {"chunk": 65536},
        longest=None,
    ),
    Peer(
        "dask-copy",
        "Dask: the same chunks are read, and the values written",
        "cpu.dask_peers:copied",
        ("stream",),
        ("dask", "zarr"),
        {"chunk": 65536},
        meaning="unjudged",
        longest=None,
    ),
    Peer(
        IN_MEMORY,
        "linkern, one call on a period, as many times as it is repeated",
        "cpu.dask_peers:in_memory",
        ("stream",),
        ("dask", "zarr"),
        meaning="unjudged",
        longest=None,
    ),
    _package("ft", "fast-transformers, layer", "layer", *_CHUNKED),
    _package(
        "ft-kernel",
        "fast-transformers, C++ kernel alone: no features, no sum of weights",
        "kernel",
        "causal",
        meaning="sums",
    ),
    _package("ft-linear", "fast-transformers, layer", "linear_layer", "full"),
    _package("ft-recurrent", "fast-transformers, layer", "recurrent", "decode"),
    _package(
        "lat",
        "linear-attention-transformer, exp(x)",
        "buckets",
        "causal",
        needs=("torch", "linear_attention_transformer"),
        dtypes=("float32", "float64"),
        meaning="exponential",
        longest=4096,
    ),
    _package(
        "performer",
        "performer-pytorch, without its CUDA kernel",
        "performer",
        "causal",
        "full",
        needs=("torch", "performer_pytorch"),
        dtypes=("float32", "float64"),
        longest=4096,
    ),
)
