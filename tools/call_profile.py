"""Show what one causal call spends in each function of NumPy, on one thread.

    python tools/call_profile.py

The quietest of some calls, in nanoseconds for each token and head, and the limit beside
it: products of large matrices. Only what the engine for additive operators calls is
seen; all else is the rest.
"""

import os
import sys

for variable in ("LINKERN_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"

from collections import Counter
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

import linkern
from linkern.bench.cpu import CPU
from linkern.bench.cpu.limits import ORDER, gemm
from linkern.bench.machine import this_machine
from linkern.bench.tasks import Inputs, drawn
from linkern.kernels.numpy import chunk_linear, features

(TASK,) = (task for task in CPU.tasks if task.name == "one-thread")
LENGTH = 4096
CALLS = 12


class Timed:
    """NumPy, with the time that each of its functions took."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        if not callable(found) or isinstance(found, type):
            return found

        def timed(*args: Any, **options: Any) -> Any:
            start = perf_counter()
            result = found(*args, **options)
            shown = name
            if name == "matmul":
                shown += f" {args[0].shape[-2:]} @ {args[1].shape[-2:]}"
            self.seconds[shown] += perf_counter() - start
            self.calls[shown] += 1
            return result

        return timed


def measured(inputs: Inputs) -> tuple[float, Timed]:
    """Return how long the quietest call took, and where."""
    arrays = inputs.query, inputs.key, inputs.value
    found = []
    for _ in range(CALLS):
        linkern.linear_attention(*arrays)  # whatever is kept between calls is there
        timed = Timed()
        vars(chunk_linear)["np"] = vars(features)["np"] = timed
        start = perf_counter()
        linkern.linear_attention(*arrays)
        found.append((perf_counter() - start, timed))
        vars(chunk_linear)["np"] = vars(features)["np"] = np
    return min(found, key=lambda item: item[0])


def lines(dtype: str) -> list[str]:
    """Return the profile in one dtype."""
    task = replace(TASK, dtype=dtype)
    inputs = drawn(task, LENGTH, seed=0)
    whole, timed = measured(inputs)
    rest = whole - sum(timed.seconds.values())
    shown = [
        (f"{name}, {timed.calls[name]} calls", seconds)
        for name, seconds in timed.seconds.most_common()
    ]
    shown += [("the rest", rest), ("one call", whole)]
    each = 1e9 / (task.heads * LENGTH)
    product = gemm(inputs, task).call
    times = []
    for _ in range(CALLS):
        start = perf_counter()
        product()
        times.append(perf_counter() - start)
    return [
        f"{dtype}, {task.heads} heads, {LENGTH} tokens, K = V = {task.dim}",
        *(f"{name:40}{each * seconds:7.0f} ns" for name, seconds in shown),
        f"products of large matrices: {2e-9 * ORDER**3 / min(times):.0f} GFLOP/s",
    ]


def main() -> None:
    """Write the profiles to standard output."""
    shown = [*this_machine().lines(), "", *lines("float32"), "", *lines("float64")]
    sys.stdout.writelines(f"{line}\n" for line in shown)


if __name__ == "__main__":
    main()
