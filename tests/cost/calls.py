"""Calls of operators, beside what their cost is asked with."""

from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

import linkern
from linkern.operators.register import DEFINITIONS
from tests.operators.problems import NAMES, problem

ALL = ("linear_attention", *NAMES)
FORMS = (
    ("auto", None), ("recurrent", None), ("parallel", None), ("chunkwise", 1),
    ("chunkwise", 2), ("chunkwise", 3), ("chunkwise", 4), ("chunkwise", 7),
)  # fmt: skip
# Fewer tokens than a chunk, several chunks, more than eight of them; `mesa` cuts at 64.
STEPPING = "gated_delta_product"
LENGTHS = st.one_of(st.integers(1, 40), st.sampled_from((64, 65, 70)))
FEW = st.integers(1, 36)


class Call(NamedTuple):
    """An operator, the arrays and options it is called with, and what is asked."""

    name: str
    inputs: dict
    options: dict
    asked: dict

    @property
    def length(self):
        rows = self.inputs["value"].shape[-2]
        return rows // self.asked["steps"] if self.name == STEPPING else rows

    def __call__(self, **inputs):
        return getattr(linkern, self.name)(**inputs)


def optional(name):
    if name == "linear_attention":
        return []
    definition = DEFINITIONS[name]
    there = definition.axes.keys() - set(definition.required)
    return sorted(there - {"log_decay"} if name == "lightning_attention" else there)


def call(
    name, length, keys=4, values=3, slots=5, steps=2, *, batch=1, heads=1,
    form="auto", size=None, without=(), dtype="float64",
):  # fmt: skip
    rng = np.random.default_rng(length)
    sizes = {"key_dim": keys, "value_dim": values, "slots": slots, "steps": steps}
    kind = "retention" if name == "linear_attention" else name
    inputs = problem(kind, rng, length, batch=batch, heads=heads, **sizes)
    if name == "retention":
        inputs["log_decay"] = -np.ones(heads)
    inputs = {
        x: None if x in without else inputs[x].astype(dtype)
        for x in (*inputs.keys(), *without)
    }
    options = {"form": form, "chunk_size": size}
    asked = {**options, "value_dim": values, "dtype": dtype, "without": without}
    asked |= {"batch": batch, "heads": heads}
    if name not in ("hgrn", "rwkv4"):
        asked["key_dim"] = keys
    if name in ("abc", "gsa"):
        asked["slots"] = slots
    if name in (STEPPING, "mamba3_mimo"):
        asked["steps"] = steps
    if name == "mamba3_mimo":
        asked["key_dim"] = steps * keys
    return Call(name, inputs, options, asked)


@st.composite
def calls(draw, name, lengths=LENGTHS, **fixed):
    form, size = draw(st.sampled_from(FORMS))
    dims = st.integers(1, 5)
    drawn = {
        "batch": draw(st.integers(1, 2)),
        "heads": draw(st.integers(1, 3)),
        "dtype": draw(st.sampled_from(("float16", "float32", "float64"))),
        "without": tuple(x for x in optional(name) if draw(st.booleans())),
        **fixed,
    }
    sizes = [draw(x) for x in (lengths, dims, dims, dims, st.integers(1, 3))]
    return call(name, *sizes, form=form, size=size, **drawn)
