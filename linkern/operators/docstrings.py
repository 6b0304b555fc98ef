"""Paragraphs of the docstrings that are the same for all operators.

A function writes its summary, the inputs that it alone has, notes, source and examples.
What it leaves out of the sections below follows from its record.
"""

import inspect
import re

from linkern.operators.definition import Definition, key_by_value

__all__ = ["completed"]

_QKV = """query, key, value : array (..., T, K), (..., T, K), (..., T, V)
    As in `simple_gla`."""
_SCALED = """**options
    `scale` (default {default}), `initial_state`, `cu_seqlens`, `form` and
    `chunk_size`, as in `simple_gla`."""
_UNSCALED = """**options
    `initial_state`, `cu_seqlens`, `form` and `chunk_size`, as in `simple_gla`;
    there is no query, so `scale` changes nothing and must be None."""
_RETURNS = """AttentionResult
    ``output (..., T, V)``; ``state`` with a memory ``(..., K, V)`` and no
    normalizer."""
_RAISES = """TypeError, ValueError
    As `simple_gla`"""


_LAYOUT = """Time is the last axis but one, as in ``(batch, heads, time, dim)``, and the
last axis of a gate that is one number a token. For arrays ``(batch, time, heads, dim)``
pass ``x.swapaxes(-3, -2)``; for gates ``(batch, time, heads)``, ``x.swapaxes(-2, -1)``.
"""


def completed(doc: str, definition: Definition) -> str:
    """Return a docstring with all sections of numpydoc."""
    summary, *parts = re.split(r"^(.+)\n-{3,}\n", inspect.cleandoc(doc), flags=re.M)
    sections = dict(zip(parts[::2], (x.rstrip() for x in parts[1::2]), strict=True))
    head = {
        "Parameters": _parameters(sections.pop("Parameters", ""), definition),
        "Returns": sections.pop("Returns", _RETURNS),
        "Raises": sections.pop("Raises", None) or _raises(definition),
    }
    if head["Returns"] is _RETURNS and definition.memory is not key_by_value:
        msg = f"the docstring of {definition.name} must describe what it returns"
        raise ValueError(msg)
    written = [
        f"{name}\n{'-' * len(name)}\n{x}" for name, x in (head | sections).items()
    ]
    return "\n\n".join([summary.rstrip(), _LAYOUT.rstrip(), *written]) + "\n"


def _parameters(written: str, definition: Definition) -> str:
    """Return the section of the parameters: inputs of all, own ones, options."""
    entries = [written] if written else []
    axes = [definition.axes.get(name) for name in ("query", "key", "value")]
    if axes == ["tk", "tk", "tv"] and not re.search(r"^query\b", written, flags=re.M):
        entries.insert(0, _QKV)
    if not re.search(r"^(\*\*options|chunk_size)", written, flags=re.M):
        default = "``K^-0.5``" if definition.inverse_root_scale else "1"
        scaled = _SCALED.format(default=default)
        entries.append(scaled if "query" in definition.axes else _UNSCALED)
    return "\n".join(entries)


def _raises(definition: Definition) -> str:
    """Return the section of the errors."""
    if "beta" in definition.axes:
        return _RAISES + "; also if `beta` leaves ``[0, 2]``."
    return _RAISES + "."
