"""Profile one causal call by NumPy function, on one thread.

    python tools/call_profile.py

Times are those of the fastest of some calls, in nanoseconds per token and head; the
speed of large matrix products is printed as the limit. Only calls from `chunk_linear`
and `features` are listed; all other time is "the rest".
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
    """NumPy with a timer around each of its functions."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(np, name)
        if not callable(attribute) or isinstance(attribute, type):
            return attribute

        def timed(*args: Any, **options: Any) -> Any:
            start = perf_counter()
            result = attribute(*args, **options)
            label = name
            if name == "matmul":
                label += f" {args[0].shape[-2:]} @ {args[1].shape[-2:]}"
            self.seconds[label] += perf_counter() - start
            self.calls[label] += 1
            return result

        return timed


def measured(inputs: Inputs) -> tuple[float, Timed]:
    """Return the seconds of the fastest call, and its profile."""
    arrays = inputs.query, inputs.key, inputs.value
    profiles = []
    for _ in range(CALLS):
        linkern.linear_attention(*arrays)  # fills the workspace pool
        timed = Timed()
        vars(chunk_linear)["np"] = vars(features)["np"] = timed
        start = perf_counter()
        linkern.linear_attention(*arrays)
        profiles.append((perf_counter() - start, timed))
        vars(chunk_linear)["np"] = vars(features)["np"] = np
    return min(profiles, key=lambda item: item[0])


def lines(dtype: str) -> list[str]:
    """Return the profile in one dtype."""
    task = replace(TASK, dtype=dtype)
    inputs = drawn(task, LENGTH, seed=0)
    whole, timed = measured(inputs)
    rest = whole - sum(timed.seconds.values())
    rows = [
        (f"{name}, {timed.calls[name]} calls", seconds)
        for name, seconds in timed.seconds.most_common()
    ]
    rows += [("the rest", rest), ("one call", whole)]
    each = 1e9 / (task.heads * LENGTH)
    product = gemm(inputs, task).call
    times = []
    for _ in range(CALLS):
        start = perf_counter()
        product()
        times.append(perf_counter() - start)
    return [
        f"{dtype}, {task.heads} heads, {LENGTH} tokens, K = V = {task.dim}",
        *(f"{name:40}{each * seconds:7.0f} ns" for name, seconds in rows),
        f"products of large matrices: {2e-9 * ORDER**3 / min(times):.0f} GFLOP/s",
    ]


def main() -> None:
    """Write the profiles to standard output."""
    report = [*this_machine().lines(), "", *lines("float32"), "", *lines("float64")]
    sys.stdout.writelines(f"{line}\n" for line in report)


if __name__ == "__main__":
    main()
