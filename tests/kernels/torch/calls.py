"""Calls of every operator on NumPy arrays, and the same on tensors."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

import linkern
from linkern import State
from tests.operators.problems import NAMES, operator, problem

# Operators with the options that only they have.
WITHOUT_STATE = ("log_linear_attention",)


@dataclass
class Call:
    name: str
    inputs: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)

    def arguments(self, change=lambda x: x):
        """All arguments, each array changed."""
        changed = {k: change(x) for k, x in {**self.inputs, **self.options}.items()}
        state = self.options.get("initial_state")
        if state is not None:
            parts = (None if x is None else change(x) for x in state)
            changed["initial_state"] = State(*parts)
        return changed

    def run(self, change=lambda x: x):
        return operator(self.name)(**self.arguments(change))

    def vjp(self, change=lambda x: x):
        return linkern.vjp(operator(self.name), **self.arguments(change))


def tensor_of(torch):
    """From arrays to tensors that share their memory; offsets are arrays as well."""
    return lambda x: torch.from_numpy(x) if isinstance(x, np.ndarray) else x


@st.composite
def calls(draw, names=NAMES, dtypes=("float64", "float32", "float16")):
    name, dtype = draw(st.sampled_from(names)), draw(st.sampled_from(dtypes))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    length = draw(st.sampled_from([0, 1, 5, 70]))
    inputs = problem(name, rng, length)
    options = {"form": draw(st.sampled_from(["auto", "auto", "recurrent"]))}
    if options["form"] == "auto":
        options["chunk_size"] = draw(st.sampled_from([None, 4, 32]))
    if "query" in inputs and name not in ("linear_attention", "rwkv4"):
        options["scale"] = draw(st.sampled_from([None, 0.3]))
    packed = draw(st.sampled_from([None, [0, 0, 1], np.asarray([0, 1, length])]))
    if packed is not None and packed[-1] <= length and sorted(packed) == [*packed]:
        options["cu_seqlens"] = packed
    if draw(st.booleans()) and name not in WITHOUT_STATE and length:
        kept = np.float64 if dtype == "float64" else np.float32
        options["initial_state"] = drawn_state(name, rng, options, kept)
    return Call(name, {k: x.astype(dtype) for k, x in inputs.items()}, options)


def drawn_state(name, rng, options, dtype):
    """The state that a few tokens leave behind, for each packed sequence."""
    state = operator(name)(**problem(name, rng, 3)).state
    if "cu_seqlens" in options:
        count = len(options["cu_seqlens"]) - 1
        state = State(*(None if x is None else np.stack([x] * count) for x in state))
    return State(*(None if x is None else x.astype(dtype) for x in state))


def results(result):
    return [x for x in (result.output, *result.state) if x is not None]


def drawn_like(result, seed=1):
    """A cotangent of the output, and one of the state."""
    rng = np.random.default_rng(seed)
    parts = [
        None if x is None else rng.normal(size=x.shape).astype(x.dtype)
        for x in (result.output, *result.state)
    ]
    return parts[0], State(*parts[1:])


def flat(gradients):
    """Gradients by name, those of a state one by one."""
    named = dict(gradients)
    state = named.pop("initial_state", None) or ()
    named |= {f"state {i}": x for i, x in enumerate(state) if x is not None}
    return named


def same_bits(tensor, array):
    """Equal in shape, dtype and every bit."""
    x = tensor.detach().numpy()
    return (
        x.shape == array.shape
        and x.dtype == array.dtype
        and x.tobytes() == array.tobytes()
    )
