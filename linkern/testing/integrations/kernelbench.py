"""KernelBench: a check of a candidate in the form of its `eval_kernel_against_ref`.

A reference is a module with ``Model``, ``get_inputs`` and ``get_init_inputs``; a
candidate is one with ``ModelNew``. The candidate runs in a process of its own. It is
judged by the laws of an operator, and on the inputs of the reference.
"""

import tempfile
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from linkern.testing.errors import UsageError
from linkern.testing.grading.single import grade
from linkern.testing.integrations.sources import written
from linkern.testing.report.grade import Grade
from linkern.testing.spec.declarations import nearest
from linkern.testing.spec.operators import OPERATORS

__all__ = ["KernelResult", "check"]

# The module that the judge calls: a `ModelNew` made once, with the inputs in order.
_ENTRY = '''\
"""The model of a candidate as a function of its inputs."""

import importlib.util
from pathlib import Path


def _loaded(name):
    path = Path(__file__).parent / f"{{name}}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_made = []


def kernel({names}):
    if not _made:
        init = getattr(_loaded("reference"), "get_init_inputs", list)()
        _made.append(_loaded("candidate").ModelNew(*init))
    return _made[0]({names})
'''


@dataclass(frozen=True)
class KernelResult:
    """Result of a candidate, with the fields of KernelBench's `KernelExecResult`.

    Parameters
    ----------
    compiled : bool
        Whether it could be loaded and called.
    correctness : bool
        Whether no law is broken.
    metadata : dict
        The grade: verdict, score, cause, seed; under ``reference`` the score of the
        reference, if it breaks a law itself.
    runtime : float
        -1: nothing was timed.
    """

    compiled: bool = False
    correctness: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    runtime: float = -1.0


def check(
    reference: str,
    candidate: str,
    *,
    op: str,
    seconds: float = 20.0,
    **options: Any,
) -> KernelResult:
    """Judge the source of a candidate against an operator and a workload.

    Parameters
    ----------
    reference : str
        Source with ``get_inputs`` and, optionally, ``get_init_inputs``. It is trusted:
        it runs in this process.
    candidate : str
        Source with ``ModelNew``. It runs in a process of its own.
    op : str
        The operator that both claim to be: a key of `linkern.testing.OPERATORS`.
    seconds : float
        Budget of the verdict.
    **options
        Further arguments of `linkern.testing.grade`, a `contract` among them.

    Returns
    -------
    KernelResult
        Its `metadata` says why.

    Raises
    ------
    UsageError
        If the operator is unknown, or if the reference has no inputs that fit.
    """
    if op not in OPERATORS:
        raise UsageError(nearest("operator", op, OPERATORS))
    names = OPERATORS[op].names
    entry = _ENTRY.format(names=", ".join(names))
    files = {"kernel.py": entry, "candidate.py": candidate, "reference.py": reference}
    with (
        tempfile.TemporaryDirectory(prefix="linkern-") as folder,
        written(files, "kernel") as target,
    ):
        inputs = Path(folder, "inputs.safetensors")
        _save_inputs(reference, names, inputs)
        options = {"framework": "torch", "inputs": str(inputs), **options}
        result: Grade = grade(target, op=op, seconds=seconds, **options)
    refused = result.verdict == "refused"
    return KernelResult(not refused, result.verdict == "passed", result.to_dict())


def _save_inputs(reference: str, names: tuple[str, ...], path: Path) -> None:
    """Save the inputs of a reference under the names of the operator."""
    module = types.ModuleType("reference")
    exec(compile(reference, "<reference>", "exec"), module.__dict__)
    if not hasattr(module, "get_inputs"):
        msg = "`reference` must define `get_inputs`, and it does not."
        raise UsageError(msg)
    arrays = [x for x in module.get_inputs() if hasattr(x, "shape")]
    if len(arrays) > len(names) or not arrays:
        msg = (
            f"`get_inputs` must return the inputs of the operator "
            f"({', '.join(names)}), got {len(arrays)} tensors."
        )
        raise UsageError(msg)
    tensors = zip(names, arrays, strict=False)
    save_file({n: x.contiguous() for n, x in tensors}, path)
