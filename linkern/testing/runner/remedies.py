"""Remedies of a target that raises on its first call, found by trying them.

A remedy is another plan under which the target runs: arrays of another library, another
dtype, one declaration less, or the least that is needed. What cannot be tried here is
told from the exception.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from linkern.testing.errors import UsageError
from linkern.testing.runner.plan import Plan
from linkern.testing.runner.trials import Trials
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.declarations import as_text

__all__ = ["frameworks", "remedy"]

# Words of an exception that name the library whose arrays are expected.
_LIBRARIES = {
    "torch": r"torch|Tensor|ndarray' object has no attribute '(to|device|is_cuda|dim|"
    r"contiguous|is_contiguous|detach|view|unsqueeze|new_zeros|new_empty|float|half|"
    r"bfloat16|element_size|data_ptr|requires_grad|softmax|exp|cuda)'",
    "jax": r"\bjax|jnp\.|Tracer|ndarray' object has no attribute 'at'",
    "cupy": r"cupy",
    "numpy": r"ndarray|numpy|'(Tensor|Array|ArrayImpl)' object has no attribute|"
    r"immutable|item assignment",
}
# What cannot be tried: words of the exception, and what to do.
_HINTS = {
    r"no module named": "It needs a package that is not installed here: install it.",
    r"block pointers have been removed": "Triton 3.9 has none: judge it where an older "
    "one is installed (`python -m pip install 'triton<3.9'`).",
    r"memoryerror": "Allow it more memory with `--memory GIB`.",
}
# The same where the inputs are on a CPU, and where they are on a GPU.
_HINTS_ON_CPU = {
    r"cuda|nvidia|triton|\bgpu\b|pointer argument": "It seems to need a GPU: judge it "
    "where there is one, with `--framework torch --device cuda`.",
}
_HINTS_ON_CUDA = {
    r"\bcpu\b": "It seems to make an array on the CPU: make it where the inputs are, "
    "with `device=query.device`.",
}
# The line that raised, behind what it raised: names of files say nothing.
_LINE = re.compile(r" \([^()]*:\d+\)$")
# The order of axes that kernels take, the most frequent first.
_LAYOUTS = ("bhtd", "bthd", "htd", "td")
# Sizes that kernels with tiles require.
_DIMS = (64, 128, 32, 16)
_TILES = (1, 2, 4, 8, 16, 32, 64, 128)
_NARROW = ("bfloat16", "float16")
# Batch, heads, length, key and value dimension of the plainest problem.
_PLAIN = (1, 1, 5, 4, 6)


def frameworks(plan: Plan, refusal: str, inferred: Iterable[str]) -> Iterator[str]:
    """Yield the installed libraries whose arrays a target may have expected."""
    named = (name for name, words in _LIBRARIES.items() if re.search(words, refusal))
    for name in dict.fromkeys((*inferred, *named)):
        if name != (plan.framework or "numpy") and find_spec(name) is not None:
            yield name


def remedy(plan: Plan, refusal: str, trials: Trials) -> str | None:
    """Return how a target that raised can be judged, in one sentence.

    Parameters
    ----------
    plan : Plan
        The plan under which it raises, with its library.
    refusal : str
        What it raised.
    trials : Trials
        Its first calls.

    Returns
    -------
    str or None
        What to type; None if it runs on the plainest input, so that it can be judged
        as it is.
    """
    for dtype in _NARROW if not plan.dtypes else ():
        if trials.runs(replace(plan, dtypes=(dtype,))):
            return f"It runs on {dtype}: judge it with `--dtype {dtype}`."
    for key in plan.contract.declared():
        # Another order of axes may fit by chance; it is tried with the others below.
        if key != "layout" and _runs(plan, {key: getattr(Contract(), key)}, trials):
            return f"It runs without `--declare {key}=`: leave that out."
    least = _least(plan, trials)
    if least is not None:
        words = " ".join(f"--declare {k}={as_text(v)}" for k, v in least.items())
        return f"It runs with `{words}`: declare that if it is meant."
    if trials.runs(plan, _PLAIN):
        return None
    said = _LINE.sub("", refusal)
    hints = _HINTS | (_HINTS_ON_CUDA if plan.on_cuda else _HINTS_ON_CPU)
    for words, hint in hints.items():
        if re.search(words, said, re.IGNORECASE):
            return hint
    axes = _axes(plan.contract.layout)
    return (
        f"It was called on arrays {axes} of {plan.framework}: name another order, "
        "library or dtype with `--declare layout=`, `--framework` or `--dtype`."
    )


def _axes(layout: str) -> str:
    names = {"b": "batch", "h": "heads", "t": "time", "d": "dim"}
    return f"({', '.join(names[axis] for axis in layout)})"


def _runs(plan: Plan, declared: Mapping[str, Any], trials: Trials) -> bool:
    """Return True if a target runs with these declarations instead."""
    try:
        contract = replace(plan.contract, **declared)
        return trials.runs(replace(plan, contract=contract))
    except UsageError:
        return False


def _least(plan: Plan, trials: Trials) -> Mapping[str, Any] | None:
    """Return the least declarations under which a target runs, if there are any.

    All restrictions at once come first; then each that is not needed is dropped.
    """

    def runs(declared: Mapping[str, Any]) -> bool:
        return _runs(plan, declared, trials)

    declared_layout = plan.contract.layout
    for layout in dict.fromkeys((declared_layout, *_LAYOUTS)):
        placed = {} if layout == declared_layout else {"layout": layout}
        if placed and runs(placed):
            return placed
        for dim in _DIMS:
            declared = {**placed, **_restrictions(plan.contract, dim)}
            if runs(declared):
                return _loosened(declared, runs)
    return None


def _restrictions(contract: Contract, dim: int) -> dict[str, Any]:
    """Return restrictions that most tiled kernels meet, where nothing is declared."""
    restricted = {
        "length_multiple_of": _TILES[-1],
        "key_dims": (dim,),
        "equal_dims": True,
    }
    already = {*contract.declared()}
    if "max_length" in already:
        already.add("length_multiple_of")
    if "value_dims" in already:
        already |= {"key_dims", "equal_dims"}
    return {key: value for key, value in restricted.items() if key not in already}


def _loosened(declared: Mapping[str, Any], runs: Any) -> Mapping[str, Any]:
    """Drop the restrictions without which a target runs too, and lower the others."""
    kept = dict(declared)
    for key in ("key_dims", "equal_dims", "length_multiple_of"):
        fewer = {k: v for k, v in kept.items() if k != key}
        if key in kept and runs(fewer):
            kept = fewer
    if "key_dims" in kept:
        dims = (n for n in sorted(_DIMS) if runs({**kept, "key_dims": (n,)}))
        kept["key_dims"] = tuple(dims)
    if "length_multiple_of" in kept:
        lengths = {k: v for k, v in kept.items() if k != "length_multiple_of"}
        for tile in _TILES:
            # One token more than a tile tells a least length from a multiple.
            longer = {**lengths, "min_length": tile + 1}
            if runs(longer):
                return longer
            multiple = {**lengths, "length_multiple_of": tile}
            if runs(multiple):
                return multiple
    return kept
