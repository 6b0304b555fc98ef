"""The suite of peers on a GPU.

Linear attention does so little with each number that a fast kernel waits for memory.
Its speed is therefore given as a share of copying as many bytes.
"""

from dataclasses import replace

from linkern.bench.cuda.cupy_peers import COPIED
from linkern.bench.cuda.peers import LIMIT, PEERS
from linkern.bench.suites import Goal, Suite
from linkern.bench.tasks import Task
from linkern.bench.timing import Schedule

__all__ = ["CUDA"]

_LENGTHS = (4096, 16384, 65536)


def _task(name: str, summary: str, kind: str, **more: object) -> Task:
    shape = {"batch": 8, "heads": 16, "dtype": "bfloat16", "lengths": _LENGTHS}
    fields = {"quick": (4096,), "device": "cuda", **shape, **more}
    return Task(name, summary, kind, **fields)  # type: ignore[arg-type]


TASKS = (
    _task("causal", "causal", "causal"),
    _task("wide", "causal", "causal", dim=128),
    _task("float32", "causal", "causal", dtype="float32"),
    _task("float32-wide", "causal", "causal", dtype="float32", dim=128),
    _task("delta", "gated delta rule", "delta"),
    _task("delta-wide", "gated delta rule", "delta", dim=128),
    _task("kda", "Kimi delta attention", "kda"),
    _task("kda-wide", "Kimi delta attention", "kda", dim=128),
    _task("gradient", "VJP of a causal call", "gradient"),
    _task("gradient-wide", "VJP of a causal call", "gradient", dim=128),
    _task("delta-gradient", "VJP of gated delta rule", "delta-gradient"),
    _task(
        *("delta-gradient-wide", "VJP of gated delta rule", "delta-gradient"), dim=128
    ),
    *(
        _task(
            f"decode-{heads}",
            f"one token, {heads * 128 * 128 * 4 >> 20} MiB of memory",
            "decode",
            batch=heads // 16,
            dim=128,
            lengths=(16,),
            quick=(16,),
        )
        for heads in (1024, 2048)
    ),
)

# The share of copying to be reached at every length, and once the speed beside FLA.
GOALS = (
    *(
        Goal(task, (), "copying", share)
        for task, share in (
            ("causal", 0.70),
            ("wide", 0.60),
            ("float32", 0.45),
            ("float32-wide", 0.45),
            ("delta-wide", 0.30),
            ("gradient", 0.45),
            ("gradient-wide", 0.45),
            ("decode-2048", 0.85),
        )
    ),
    Goal("delta-wide", (), "speed", 1.5, against=("fla-delta",), whom="FLA"),
)

# A turn is one sample, without a pause: the GPU stays busy from one to the next.
_TURNS = Schedule(rounds=7, budget=float("inf"), pause=0.0)

CUDA = Suite(
    "cuda",
    "linkern bench --device cuda --json",
    "linkern-bench-cuda-1",
    TASKS,
    PEERS,
    (LIMIT,),
    GOALS,
    quick_tasks=("causal", "decode-1024"),
    schedule=_TURNS,
    quick_schedule=replace(_TURNS, rounds=3),
    copied=COPIED,
    contestant_seconds=60.0,
    task_seconds=150.0,
)
