"""A counterexample as a few lines of Python: fit for an issue, and complete.

The inputs are literals, so only a counterexample with few numbers becomes a snippet;
`reproduce` writes the others to files.
"""

import math
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.testing.runner.plan import Plan
from linkern.testing.runner.reproduce import keywords, wrong_entry
from linkern.testing.runner.results import CheckResult
from linkern.testing.spec.operators import OPERATORS
from linkern.testing.spec.raw_gates import PARAMETRIC_FORMS
from linkern.testing.target.protocol import Call, to_layout

__all__ = ["MOST_LINES", "snippet"]

MOST_LINES = 15
WIDTH = 88
# For each array library: its import, and an array of it.
_LIBRARIES = {
    "numpy": ("import numpy as np", "np.array({values}, np.{dtype})"),
    "torch": ("import torch", "torch.tensor({values}, dtype=torch.{dtype}{device})"),
    "jax": ("import jax.numpy as jnp", "jnp.array({values}, jnp.{dtype})"),
    "cupy": ("import cupy", "cupy.array({values}, cupy.{dtype})"),
}
_WIDE_JAX = "import jax; jax.config.update('jax_enable_x64', True)"


def snippet(plan: Plan, result: CheckResult) -> str | None:
    """Return a program of at most `MOST_LINES` that shows a failure, if there is one.

    Parameters
    ----------
    plan : Plan
        Target and contract.
    result : CheckResult
        A failed check of the plan.

    Returns
    -------
    str or None
        The inputs of the last call as literals, the call, and the interval in which a
        correct kernel's result lies. None if there are too many numbers, if one call
        does not show the failure, or if the output is not what is wrong.
    """
    example = result.counterexample
    library = plan.framework or "numpy"
    if example is None or plan.command is not None or library not in _LIBRARIES:
        return None
    wrong = wrong_entry(example, plan.contract.layout)
    several = plan.contract.interface == "step" or plan.ranks
    if wrong is None or not example.calls or several or example.repeats is False:
        return None
    if plan.contract.decay_form in PARAMETRIC_FORMS:  # two more arrays
        return None
    call, (index, low, high) = example.calls[-1], wrong
    plain = not call.cuts and not call.segments and call.threads == 1
    if not plain or call.memory != "contiguous" or "bfloat16" in _dtypes(call, library):
        return None
    place, _, attribute = plan.target.rpartition(":")
    name = attribute.rpartition(".")[2]
    lines = [*_imports(call, library, place, attribute), ""]
    for one, x in call.inputs.items():
        axes = OPERATORS[plan.op].input(one).axes
        array = to_layout(x, plan.contract.layout, axes)
        lines += _literal(one, array, library, plan.device)
    entry = ", ".join(map(str, index))
    lines += [
        _call(plan, result, call, name),
        "output = output[0] if isinstance(output, tuple) else output",
        f"got = float(output[{entry}])  # {result.name}",
        f"assert {_bound(low)} <= got <= {_bound(high)}, got",
    ]
    text = "\n".join(lines)
    too_large = len(text.splitlines()) > MOST_LINES or not name.isidentifier()
    return None if too_large else text


def _dtypes(call: Call, library: str) -> set[str]:
    """Return the dtypes of the inputs that the library has no literal of."""
    if library == "torch":
        return set()
    return {x.dtype.name for x in call.inputs.values()}


def _imports(call: Call, library: str, place: str, attribute: str) -> list[str]:
    """Return the imports of the array library and of the target."""
    lines = [_LIBRARIES[library][0]]
    if library == "jax" and any(x.dtype == np.float64 for x in call.inputs.values()):
        lines.insert(0, _WIDE_JAX)
    if place.endswith(".py"):
        path = Path(place)
        lines += [f"import sys; sys.path.insert(0, {str(path.parent)!r})"]
        place = path.stem
    owner, _, name = attribute.rpartition(".")
    if not owner:
        return [*lines, f"from {place} import {name}"]
    first = owner.partition(".")[0]
    return [*lines, f"from {place} import {first}; {name} = {attribute}"]


def _literal(name: str, x: NDArray[Any], library: str, device: str) -> list[str]:
    """Return the lines that make one input."""
    numbers = ", ".join(_number(item) for item in x.ravel().tolist())
    if x.dtype.name in ("float16", "float32"):
        numbers = ", ".join(_number(item) for item in x.ravel())
    form = _LIBRARIES[library][1]
    made = form.format(
        values=f"[{numbers}]",
        dtype=x.dtype.name,
        device="" if device == "cpu" else f", device={device!r}",
    )
    shape = ", ".join(map(str, x.shape)) if x.ndim else "()"
    line = f"{name} = {made}.reshape({shape})"
    return textwrap.wrap(
        line,
        WIDTH,
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _number(x: Any) -> str:
    """Return the shortest text that is this number in its dtype."""
    if not math.isfinite(x):
        return f"float('{float(x)}')"
    return str(x).removesuffix(".0")


def _bound(x: float) -> str:
    return repr(x) if math.isfinite(x) else f"float('{x}')"


def _call(plan: Plan, result: CheckResult, call: Call, name: str) -> str:
    """Return the call, by the names of the target's parameters if it has any."""
    assert result.counterexample is not None
    interface = result.counterexample.interface
    operator = OPERATORS[plan.op]
    if interface.inputs:
        pairs = zip(interface.inputs, operator.names, strict=True)
        words = [f"{own}={one}" for own, one in pairs if one in call.inputs]
        if [*interface.inputs] == [*operator.names] == [*call.inputs]:
            words = [*call.inputs]
    else:
        words = [one if one in call.inputs else "None" for one in operator.names]
    options = keywords(plan, interface, call)
    words += [f"{key}={value!r}" for key, value in options.items()]
    return f"output = {name}({', '.join(words)})"
