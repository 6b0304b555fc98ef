"""The suite of generating token by token: one layer of attention, then whole models."""

from dataclasses import replace

from linkern.bench.generation.models import whole_models
from linkern.bench.generation.one_layer import attention_alone
from linkern.bench.suites import Suite
from linkern.bench.tasks import Task
from linkern.bench.timing import Schedule

__all__ = ["LENGTHS", "generation_suite"]

LENGTHS = (784, 3072, 16384)

_ALONE = Task(
    "attention alone",
    "attention alone: generating with one layer, 8 heads of 32, batch 1, float32",
    "generate",
    LENGTHS,
    dim=32,
    baseline="linear",
    quick=(64, 256),
)


def generation_suite(depth: int = 4, seed: int = 0) -> Suite:
    """Return the suite for models of some depth, with tokens drawn from a seed."""
    whole = replace(
        _ALONE,
        name="whole models",
        summary=f"whole models: NumPy, {depth} layers, 8 heads of 32, batch 1, float32",
        baseline="model-linear",
        quick=(16, 64),
    )
    alone = attention_alone(heads=_ALONE.heads, dim=_ALONE.dim, seed=seed)
    return Suite(
        "generation",
        "linkern bench generation --json",
        1,
        (_ALONE, whole),
        (*alone, *whole_models(depth=depth, seed=seed)),
        quick_schedule=Schedule(rounds=5, budget=0.4, window=0),
    )
