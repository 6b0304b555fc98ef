"""Plans of steps on plain arrays of NumPy: structure that was checked is not again.

A step of decoding takes less time than its checks. All of them but those of values
follow from a signature: the operator, the shapes and dtypes of the state and of the
inputs, and the options. A call that has succeeded leaves a plan for its signature, if
nothing has to be widened, repeated or broadcast; the next one computes at once.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np

from linkern.kernels.dispatch import backend_of
from linkern.operators.definition import (
    QKV,
    Definition,
    Inputs,
    Prepared,
    check_values,
    prepared,
)
from linkern.operators.forms import Form
from linkern.state import AttentionResult, State
from linkern.typing import Array

__all__ = ["known_plan", "remember", "signature_of"]

Signature = tuple[Any, ...]
# From the state, the inputs by position, and options with the other inputs.
Plan = Callable[[State, Sequence[Any], Mapping[str, Any]], AttentionResult]

# None for steps that have no short way.
_PLANS: dict[Signature, Plan | None] = {}
_MOST_PLANS = 64
_NUMBERS_AND_NAMES = frozenset({float, int, str, bool, type(None)})


def signature_of(
    op: Any, state: Any, inputs: Sequence[Any], options: Mapping[str, Any]
) -> Signature | None:
    """Return all that the checks of a step look at but values; None if there is more.

    There is more to see in arrays that are not plain ones of NumPy, and in objects.
    """
    if type(state) is not State or type(op) is not FunctionType:
        return None
    parts: list[Any] = [op]
    for x in (*state, *inputs):
        if type(x) is np.ndarray:
            parts += x.shape, x.dtype
        elif x is None:
            parts.append(None)
        else:
            return None
    for name, x in options.items():
        kind = type(x)
        if kind is np.ndarray:
            parts += name, x.shape, x.dtype
        elif kind in _NUMBERS_AND_NAMES or kind is FunctionType:
            parts += name, kind, x
        else:
            return None
    return tuple(parts)


def known_plan(signature: Signature | None) -> Plan | None:
    """Return the plan of the steps with a signature, if there is one."""
    return None if signature is None else _PLANS.get(signature)


def remember(
    signature: Signature | None, definition: Definition, call: Inputs, token: Inputs
) -> None:
    """Keep the plan of a step that has succeeded, or that there is none.

    Parameters
    ----------
    signature : tuple or None
        Its signature.
    definition : Definition
        Its operator.
    call, token : mapping
        Its arguments by name, with an axis of tokens and without.
    """
    if signature is None or signature in _PLANS:
        return
    ready, plan = prepared(definition, call), None
    if call.get("cu_seqlens") is None and _as_they_are(ready, token):
        plan = _plan(ready, token)
    if len(_PLANS) >= _MOST_PLANS:
        _PLANS.clear()
    _PLANS[signature] = plan


def _as_they_are(ready: Prepared, token: Inputs) -> bool:
    """Return True if nothing of a step is widened, repeated or broadcast."""
    wide, cores = ready.like.dtype, ready.state_shapes(ready.sizes)
    if not ready.is_next(token["initial_state"], cores):
        return False
    for name, letters in ready.definition.axes.items():
        x, axes = token.get(name), len(letters.replace("t", ""))
        if x is not None and (x.dtype, x.shape[: x.ndim - axes]) != (wide, ready.batch):
            return False
    return True


def _plan(ready: Prepared, token: Inputs) -> Plan | None:
    """Return the short way of a step by the back end of NumPy, if there is one."""
    backend, definition = backend_of(ready.like), ready.definition
    if backend is None or backend.token is None or "s" in ready.sizes:
        return None
    if definition.prepare is None:
        return _ByTerms(definition, Form(backend.token, 1, direct=True), ready.factor)
    feature_map = token.get("feature_map")
    if backend.attend_token is None or not backend.applies(feature_map):
        return None
    options = {"feature_map": feature_map, "scale": ready.options["scale"]}
    return partial(_by_features, partial(backend.attend_token, **options))


class _ByTerms:
    """Runs one token of an operator that is terms of the recurrence."""

    def __init__(
        self, definition: Definition, form: Form, factor: float | None
    ) -> None:
        self._definition, self._attend = definition, definition.attend
        self._form, self._factor = form, factor
        self._names = tuple(definition.axes)
        self._missing: dict[str, Any] = dict.fromkeys(self._names)
        row, number = (..., None, slice(None)), (..., None, None)
        self._index = {
            name: number if letters in ("", "t") else row
            for name, letters in definition.axes.items()
        }

    def __call__(
        self, state: State, inputs: Sequence[Any], options: Mapping[str, Any]
    ) -> AttentionResult:
        """Return the result of a step."""
        ready, index = self._missing.copy(), self._index
        for name, x in zip(self._names, inputs, strict=False):
            if x is not None:
                ready[name] = x[index[name]]
        for name, x in options.items():
            if type(x) is np.ndarray:
                ready[name] = x[index[name]]
        check_values(self._definition, ready)
        if self._factor is not None:
            ready["query"] = ready["query"] * self._factor
        output, after = self._attend(self._form, state, **ready)
        return AttentionResult(output[..., 0, :], after)


def _by_features(
    attend_token: Callable[..., tuple[Array, Array, Array | None]],
    state: State,
    inputs: Sequence[Any],
    options: Mapping[str, Any],
) -> AttentionResult:
    """Run one token of linear attention with a feature map."""
    rows = inputs if len(inputs) == 3 else (*inputs, *_arrays(inputs, options))
    output, memory, normalizer = attend_token(*rows, *state)
    return AttentionResult(output, State(memory, normalizer))


def _arrays(inputs: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:
    """Return the inputs that were passed by name."""
    return [options[name] for name in tuple(QKV)[len(inputs) :]]
