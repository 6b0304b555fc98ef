"""A call of an operator without its tensors, and its evaluation on NumPy arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from linkern import feature_maps
from linkern.autodiff.vjp import Pullback, differentiated
from linkern.kernels.dispatch import OPERATORS
from linkern.state import AttentionResult, State
from linkern.typing import Array

__all__ = ["MEMORY", "NORMALIZER", "OFFSETS", "Call", "Tensor", "parts"]

Tensor = Any

# Names of the tensors of a state, and of those that are never differentiated.
MEMORY, NORMALIZER = "initial_state.memory", "initial_state.normalizer"
OFFSETS = "cu_seqlens"


@dataclass
class Call:
    """A call of an operator without its tensors.

    Parameters
    ----------
    operator : str
        Name of the operator.
    names : tuple of str
        Names of the tensors: inputs, parts of the initial state, offsets.
    options : mapping
        All other arguments; a feature map by its name in `linkern.feature_maps`.
    differentiated : bool
        True to keep the pullback of the next evaluation.
    pullback : callable, optional
        What was kept.
    """

    operator: str
    names: tuple[str, ...]
    options: Mapping[str, Any]
    differentiated: bool = False
    pullback: Pullback | None = None

    @property
    def varying(self) -> tuple[int, ...]:
        """Positions of the tensors that results depend on smoothly."""
        return tuple(i for i, name in enumerate(self.names) if name != OFFSETS)

    def without_results(self) -> "Call":
        """Return the same call of other tensors."""
        return replace(self, differentiated=False, pullback=None)

    def evaluated(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return output, memory and normalizer, if there is one, from NumPy."""
        arrays = [_array(x) for x in tensors]
        if self.differentiated:
            result, self.pullback = differentiated(self._run, self._arguments(arrays))
        else:
            result = self._run(self._arguments(arrays))
        return _tensors(parts(result), beside=arrays)

    def gradients(
        self, cotangents: Sequence[Tensor | None], tensors: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Return the gradients of the tensors at `varying`, from NumPy."""
        pullback, arrays = self.pullback, [_array(x) for x in tensors]
        if pullback is None:
            _, pullback = differentiated(self._run, self._arguments(arrays))
        output, *state = [None if x is None else _array(x) for x in cotangents]
        with np.errstate(all="ignore"):
            by_name = pullback(output, State(*state, *[None] * (2 - len(state))))
        if "initial_state" in by_name:  # a state, also if one array was passed for it
            memory, normalizer = by_name["initial_state"]
            by_name |= {"initial_state": memory, MEMORY: memory, NORMALIZER: normalizer}
        gradients = [by_name[self.names[i]] for i in self.varying]
        passed = [x for x in (output, *state) if x is not None]
        return _tensors(gradients, beside=[*arrays, *passed])

    def in_array_code(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the same results computed by PyTorch, which can differentiate them."""
        return parts(self._run(self._arguments(tensors)))

    def _run(self, arguments: Mapping[str, Any]) -> AttentionResult[Any]:
        with np.errstate(all="ignore"):  # PyTorch does not warn of NaN and infinity
            return OPERATORS[self.operator].run(arguments)

    def _arguments(self, arrays: Sequence[Array]) -> dict[str, Any]:
        """Return all arguments by name."""
        named: dict[str, Any] = dict(zip(self.names, arrays, strict=True))
        if MEMORY in named:
            normalizer = named.pop(NORMALIZER, None)
            named["initial_state"] = State(named.pop(MEMORY), normalizer)
        return {**self.given_options(), **named}

    def given_options(self) -> dict[str, Any]:
        """Return the options as they were passed."""
        options = dict(self.options)
        if "feature_map" in options:
            options["feature_map"] = getattr(feature_maps, options["feature_map"])
        return options


def parts(result: AttentionResult[Any]) -> tuple[Any, ...]:
    """Return output, memory and normalizer, if there is one."""
    memory, normalizer = result.state
    parts = (result.output, memory)
    return parts if normalizer is None else (*parts, normalizer)


def _array(x: Tensor) -> Array:
    """Return a tensor as an array that shares its memory."""
    array: Array = x.detach().resolve_neg().numpy()
    return array


def _tensors(arrays: Sequence[Any], *, beside: Sequence[Any]) -> tuple[Tensor, ...]:
    """Return arrays as tensors that share memory with nothing that the caller has.

    PyTorch writes into what it gets: it adds gradients in place.
    """
    own: list[Any] = []
    for x in arrays:
        shared = any(np.may_share_memory(x, other) for other in (*beside, *own))
        plain = x.flags.writeable and min(x.strides, default=0) >= 0
        own.append(x if plain and not shared else x.copy())
    return tuple(torch.from_numpy(x) for x in own)
