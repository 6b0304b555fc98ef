"""The suite of peers on a CPU: tasks, goals, and the limits of the machine."""

from linkern.bench.cpu.limits import COPIED
from linkern.bench.cpu.peers import (
    DELTA_ON_JAX,
    IN_MEMORY,
    LIMITS,
    ON_JAX,
    OUT_OF_CORE,
    PEERS,
    STREAM,
)
from linkern.bench.peers import SOFTMAX
from linkern.bench.suites import Goal, Suite
from linkern.bench.tasks import OURS, Task
from linkern.bench.timing import Schedule

__all__ = ["CPU"]

_MIB = 2.0**20
_SHORT, _MIDDLE, _LONG = (512,), (1024, 2048, 4096), (16384, 65536)
_ALL = (*_SHORT, *_MIDDLE, *_LONG)
_WIDE, _FULL = (1024, 4096, 16384), (4096, *_LONG)
_THREE, _ENDS = (512, 4096, 16384), (1024, 65536)
_TWO = (2**18, 2**19)

TASKS = (
    Task("causal", "causal", "causal", _ALL),
    Task("wide", "causal", "causal", _WIDE, dim=128),
    Task("narrow", "causal", "causal", _WIDE, dim=32),
    Task("float64", "causal", "causal", _THREE, dtype="float64"),
    Task("one-head", "causal, a single head", "causal", (16384,), heads=1),
    Task("one-thread", "causal, one thread", "causal", _THREE, threads=1),
    Task("noncausal", "every query sees every key", "full", _FULL),
    Task("gradient", "causal and its VJP", "gradient", (512, *_FULL)),
    Task("torch-cpu", "causal, linkern on tensors too", "causal", (4096,), batch=2),
    Task(*("torch-cpu-gradient", "the same and its VJP", "gradient", (4096,)), batch=2),
    Task("decode-1", "token by token, one sequence", "decode", (512,), quick=(512,)),
    Task(
        *("decode-64", "token by token, 64 sequences", "decode", (256,)),
        batch=64,
        quick=(256,),
    ),
    Task(
        *("jax-run", "causal, JAX under jit", "causal", _WIDE),
        default=False,
        baseline=ON_JAX,
    ),
    Task(
        *("jax-run-gradient", "causal and its VJP, JAX under jit", "gradient", _WIDE),
        default=False,
        baseline=ON_JAX,
    ),
    Task(
        *("jax-compile", "compiling a causal call and its VJP", "compile", _ENDS),
        default=False,
        baseline=ON_JAX,
    ),
    Task(
        "jax-compile-delta",
        "compiling gated delta rule and its VJP",
        *("compile-delta", _ENDS),
        default=False,
        baseline=DELTA_ON_JAX,
    ),
    Task(
        *("out-of-core", "causal, from stores to a store", "stream", (10**7,)),
        default=False,
        quick=(2**19,),
        baseline=STREAM,
    ),
    Task(
        *("out-of-core-gradient", "causal and its VJP, from stores", "gradient"),
        _TWO,
        default=False,
        baseline=OUT_OF_CORE,
    ),
    Task(
        *("million", "causal, 8.6 GB of inputs and outputs", "causal", (2**20,)),
        default=False,
    ),
)

_TORCH = (
    "torch-loop-64",
    "torch-loop-128",
    "torch-parallel-64",
    "torch-parallel-128",
    "torch-compile",
)
_AUTOGRAD = "torch autograd"


def _speed(
    task: str, lengths: tuple[int, ...], least: float, *against: str, whom: str = ""
) -> Goal:
    words = whom or (against[0] if against else "the fastest peer")
    return Goal(task, lengths, "speed", least, None, against, words)


GOALS = (
    _speed("causal", _SHORT, 1.0),
    _speed("causal", _MIDDLE, 1.3),
    _speed("causal", _LONG, 2.0),
    _speed("causal", (4096,), 2.2, "ft-kernel"),
    _speed("causal", (4096,), 5.0, "ft"),
    _speed("causal", (4096,), 9.0, SOFTMAX),
    _speed("causal", (16384,), 30.0, SOFTMAX),
    Goal("causal", _ALL, "peak", 0.40),
    Goal("causal", _ALL, "extra", most=12 * _MIB),
    Goal("causal", _ALL, "exponent", 0.95, 1.05),
    Goal("one-thread", _THREE, "peak", 0.42),
    _speed("wide", _WIDE, 1.7),
    Goal("wide", _WIDE, "peak", 0.45),
    _speed("narrow", _WIDE, 1.0),
    _speed("float64", _THREE, 1.3),
    Goal("float64", _THREE, "peak", 0.35),
    # Two cores give up to 2; "must not fall back to one core's speed".
    _speed("one-head", (16384,), 1.3, "linkern-one-thread", whom="one thread of it"),
    _speed("noncausal", (4096,), 1.0, "torch"),
    _speed("noncausal", _LONG, 2.0, "torch"),
    _speed("gradient", (4096,), 1.0, *_TORCH, whom=_AUTOGRAD),
    _speed("gradient", _LONG, 1.3, *_TORCH, whom=_AUTOGRAD),
    _speed("gradient", _FULL, 2.5, "ft"),
    Goal("gradient", _FULL, "saving", 3.0, None, _TORCH, _AUTOGRAD),
    Goal("gradient", _FULL, "saving", 3.0, None, ("ft",), "ft"),
    *(
        goal
        for task in ("torch-cpu", "torch-cpu-gradient")
        for goal in (
            Goal(
                *(task, (4096,), "speed", None, 1.15, ("linkern-tensors",)),
                "itself on tensors",
            ),
            _speed(task, (4096,), 1.15, *_TORCH, whom="torch, eager or compiled"),
        )
    ),
    Goal("decode-1", (512,), "seconds", most=17e-6),
    Goal("decode-64", (256,), "seconds", most=0.5e-3),
    *(
        _speed(task, _WIDE, 1 / 1.3, "jax-scan", whom="a loop written by hand")
        for task in ("jax-run", "jax-run-gradient")
    ),
    Goal("jax-compile-delta", _ENDS, "seconds", most=3.0),
    *(
        goal
        for task, call in (("out-of-core", IN_MEMORY), ("out-of-core-gradient", OURS))
        for goal in (
            _speed(task, (), 0.6, call, whom="a call in memory"),
            Goal(task, (), "blocks", most=8.0),
        )
    ),
    Goal("million", (2**20,), "extra", most=16 * _MIB),
)

CPU = Suite(
    "cpu",
    "linkern bench --json",
    "linkern-bench-1",
    TASKS,
    PEERS,
    LIMITS,
    GOALS,
    quick_tasks=("causal", "decode-1"),
    # One of each kind: each starts a process, and some compile for many seconds.
    quick_peers=(
        *(OURS, "torch-parallel-64", SOFTMAX, "torch-in-place"),
        *("numpy-preallocated", "ft-kernel"),
    ),
    schedule=Schedule(),
    quick_schedule=Schedule(rounds=3, budget=1.0, window=0.1),
    copied=COPIED,
)
