"""FlashInfer-Bench: an evaluator that judges by proved bounds.

    from linkern.testing.integrations import flashinfer_bench
    flashinfer_bench.register()    # before `Benchmark(...).run_all()`

It runs a solution on the inputs of the benchmark, in the process of the benchmark, and
once more after one number of them has changed in place.
"""

import traceback
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flashinfer_bench import Correctness, Definition, Evaluation, EvaluationStatus
from flashinfer_bench.bench.evaluators import registry
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.utils import allocate_outputs, normalize_result
from flashinfer_bench.bench.utils import make_eval

from linkern.testing.checks.assertions import compared
from linkern.testing.integrations.flashinfer_workloads import (
    MOST_TOKENS,
    definition,
    op_of,
    sequences,
)

__all__ = ["LinkernEvaluator", "definition", "register"]


class LinkernEvaluator(DefaultEvaluator):  # type: ignore[misc]  # it has no types
    """Evaluator of linear attention: the proved bound in the place of a tolerance."""

    @classmethod
    def can_evaluate(cls, definition: Definition) -> bool:
        """Return True for ``gdn`` and for definitions that linkern writes."""
        return op_of(definition) is not None

    @classmethod
    def check_correctness(
        cls,
        definition: Definition,
        sol_runnable: Any,
        inputs: list[list[Any]],
        ref_outputs: list[list[torch.Tensor]],
        cfg: Any,
        log_path: str,
        device: str,
    ) -> tuple[Correctness | None, Evaluation | None]:
        """Judge a solution on the inputs of each trial, and on a changed value."""
        del ref_outputs, cfg  # the oracle knows the results, and needs no tolerance
        worst = np.zeros(3)
        for trial in inputs:
            for changed in (False, True):
                if changed:
                    _change_one_value(definition, trial)
                try:
                    outputs = _run(definition, sol_runnable, trial, device)
                except Exception:
                    traceback.print_exc()  # the runner keeps it as the log
                    status = EvaluationStatus.RUNTIME_ERROR
                    return None, make_eval(status, device, log_path)
                misfit = _misfit(definition, trial, outputs)
                if misfit is not None:
                    return None, make_eval(misfit, device, log_path)
                worst = np.maximum(worst, _errors(definition, trial, outputs))
        ratio, absolute, relative = worst.tolist()
        correctness = Correctness(
            max_absolute_error=absolute,
            max_relative_error=relative,
            extra={"worst_error_over_bound": ratio, "most_tokens": MOST_TOKENS},
        )
        if ratio <= 1:
            return correctness, None
        status = EvaluationStatus.INCORRECT_NUMERICAL
        return correctness, make_eval(status, device, log_path, correctness)


def register() -> None:
    """Let FlashInfer-Bench choose the evaluator for the definitions that it takes."""
    if LinkernEvaluator not in registry._EVALUATORS:
        registry._EVALUATORS.append(LinkernEvaluator)


def _run(
    definition: Definition, runnable: Any, inputs: list[Any], device: str
) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        if runnable.metadata.destination_passing_style:
            outputs = allocate_outputs(definition, inputs, device)
            runnable(*inputs, *outputs)
        else:
            outputs = normalize_result(definition, runnable(*inputs), device)
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    return dict(zip(definition.outputs, outputs, strict=True))


def _change_one_value(definition: Definition, inputs: list[Any]) -> None:
    """Change one number at its address: remembered results no longer fit."""
    named = dict(zip(definition.inputs, inputs, strict=True))
    value = named["v" if definition.op_type == "gdn" else "value"]
    if value.numel():
        value.view(-1)[0] += 1


def _misfit(
    definition: Definition, inputs: list[Any], outputs: Mapping[str, torch.Tensor]
) -> EvaluationStatus | None:
    """Return the status of outputs of another shape or dtype."""
    sizes = definition.get_axes_values_from_inputs(inputs)
    shapes = definition.get_output_shapes(sizes)
    dtypes = definition.torch_output_dtypes
    for got, shape, dtype in zip(outputs.values(), shapes, dtypes, strict=True):
        if tuple(got.shape) != tuple(shape):
            return EvaluationStatus.INCORRECT_SHAPE
        if got.dtype != dtype:
            return EvaluationStatus.INCORRECT_DTYPE
    return None


def _errors(
    definition: Definition, inputs: list[Any], outputs: Mapping[str, torch.Tensor]
) -> np.ndarray:
    """Return the worst error as a multiple of its bound, absolutely and relatively."""
    worst = np.zeros(3)
    named = dict(zip(definition.inputs, inputs, strict=True))
    dtype = str(next(iter(definition.inputs.values())).dtype.value)
    for sequence in sequences(definition, named, outputs):
        bounds = sequence.bounds(dtype)
        for name, got, stored in sequence.results:
            seen = compared(got, bounds[name], stored)
            error = abs(got - bounds[name].output)
            size = np.maximum(abs(bounds[name].output), np.finfo(np.float32).tiny)
            ratio = np.where(seen.fine, np.minimum(seen.ratio, 1.0), seen.ratio)
            largest = [
                np.nan_to_num(x, nan=np.inf).max() for x in (error, error / size)
            ]
            worst = np.maximum(worst, [ratio.max(), *largest])
    return worst
