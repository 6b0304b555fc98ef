"""Limits of the machine: products of matrices, and copying."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from linkern.bench.clocks import HostCall
from linkern.bench.tasks import Inputs, Task

__all__ = ["COPIED", "ORDER", "copy", "gemm"]

# Rows of the matrices; larger ones are no faster.
ORDER = 2048
# Bytes of each of the two arrays; more than any cache of one core.
COPIED = 128 * 2**20


def gemm(inputs: Inputs, _task: Task) -> HostCall:
    """Return the product of two square matrices, ``2 ORDER^3`` operations."""
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((2, ORDER, ORDER)).astype(inputs.query.dtype)
    out = np.empty_like(left)
    return HostCall(lambda: np.matmul(left, right, out=out), lambda _: [])


def copy(_inputs: Inputs, _task: Task) -> HostCall:
    """Return copying an array in as many parts as there are threads."""
    count = int(os.environ.get("LINKERN_NUM_THREADS", "1"))
    source = np.ones(COPIED, "uint8")
    target = np.zeros_like(source)
    pairs = list(
        zip(np.array_split(target, count), np.array_split(source, count), strict=True)
    )
    pool = ThreadPoolExecutor(count)

    def call() -> None:
        list(pool.map(lambda pair: np.copyto(*pair), pairs))

    return HostCall(call, lambda _: [])
