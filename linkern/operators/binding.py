"""Taking a call of an operator apart: which arguments are inputs, which options."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from linkern.operators.definition import DEFINITIONS, Definition

__all__ = ["bound", "definition_of"]


def definition_of(op: Any) -> Definition:
    """Return the definition of an operator of the family; `TypeError` if it is none."""
    name = getattr(op, "__name__", "")
    if not callable(op) or name not in DEFINITIONS:
        msg = (
            "`op` must be an operator of the family, such as `linkern.kda`, got "
            f"{op!r}; known: {', '.join(sorted(DEFINITIONS))}."
        )
        raise TypeError(msg)
    return DEFINITIONS[name]


def bound(
    op: Any, inputs: Sequence[Any], options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the inputs of a call by name, and its options."""
    axes = definition_of(op).axes
    signature = inspect.signature(op)
    called = signature.bind(*inputs, **options).arguments
    named = (name for name in axes if name in signature.parameters)
    arrays = {name: called.pop(name, None) for name in named}
    return arrays, called
