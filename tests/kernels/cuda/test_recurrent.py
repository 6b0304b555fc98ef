"""The recurrent kernels in the emulator, and the operators that they compute."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import linkern
from linkern.core.recurrence import Terms
from linkern.kernels.cuda.forward import recurrent
from linkern.operators import definition as operators
from linkern.operators.register import DEFINITIONS
from linkern.state import State
from tests.kernels.cuda.emulator.device import Emulator
from tests.kernels.cuda.problems import BATCHES, DTYPES, WAYS, close, strided


class Kind(NamedTuple):
    """Kind of terms; each is a kernel of its own."""

    dtype: str
    decay: str | None = None
    erase: bool = False
    early_erase: bool = False
    early_read: bool = False

    def terms(self, seed, length, dims, batch=(2,)):
        """Draw terms that are exact in the dtype, and an initial memory."""
        rng = np.random.default_rng(seed)
        features, values = dims
        kind, wide = DTYPES[self.dtype], np.result_type(DTYPES[self.dtype], np.float32)

        def rows(size):
            return rng.normal(size=(*batch, length, size)) / max(1, size) ** 0.5

        decays = None
        if self.decay:
            size = features if self.decay == "feature" else 1
            decays = np.minimum(-rng.exponential(0.3, (*batch, length, size)), 0)
            # Some tokens erase everything before them.
            decays[rng.random(decays.shape) < 0.05] = -np.inf
            decays = decays.astype(wide)
        terms = Terms(
            *(rows(size).astype(kind) for size in (features, features, values)),
            decays,
            rows(features).astype(kind) if self.erase else None,
            early_erase=self.early_erase,
            early_read=self.early_read,
        )
        return terms, rng.normal(size=(*batch, *dims)).astype(wide)


def expected(memory, terms):
    """Return the output and the last memory: the equation in float64, by tokens."""
    memory = memory.astype(np.float64)
    terms = terms.mapped(lambda x: x.astype(np.float64))
    output = np.zeros(terms.value.shape)
    for t in range(terms.value.shape[-2]):
        here = terms.span(slice(t, t + 1))
        decay = 1.0
        if terms.log_decay is not None:
            decay = np.exp(here.log_decay).swapaxes(-1, -2)
        written = here.value
        if terms.erase is not None:
            seen = memory if terms.early_erase else decay * memory
            written = written - here.erase @ seen
        after = decay * memory + here.key.swapaxes(-1, -2) * written
        output[..., t : t + 1, :] = here.query @ (memory if terms.early_read else after)
        memory = after
    return output, memory


# Few kernels that together have all template arguments.
KINDS = (
    Kind("float32", "token", erase=True),
    Kind("float64", "feature", erase=True, early_erase=True),
    Kind("bfloat16", "feature", early_read=True),
    Kind("float16", erase=True),
)
LENGTHS = (0, 1, 2, 4, 5, 33)
DIMS = ((1, 1), (3, 5), (32, 32), (33, 40), (0, 2), (2, 0), (260, 33))


def law_the_equation(device, kind, seed, length, dims, batch):
    terms, memory = kind.terms(seed, length, dims, batch)
    close(recurrent(device, memory, terms), expected(memory, terms))


def problem_of(kind, dims):
    """A call that uses both buffers, and ends inside a span and a slice."""
    return lambda device: law_the_equation(device, kind, 1, 11, dims, (2,))


def law_an_infinity_stays_in_its_column(device):
    terms, memory = KINDS[0].terms(0, 5, (21, 6))
    # Rows read infinity, and not a difference of two of them.
    terms = terms._replace(query=abs(terms.query), key=abs(terms.key))
    terms.value[..., -1, 2] = np.inf
    with np.errstate(invalid="ignore"):
        close(recurrent(device, memory, terms), expected(memory, terms))


PROBLEMS = {kind.dtype: problem_of(kind, (21, 37)) for kind in KINDS}
# Rows of a memory are loaded 16 bytes at a time.
PROBLEMS["whole vectors"] = problem_of(KINDS[0], (21, 36))
PROBLEMS["infinity"] = law_an_infinity_stays_in_its_column
# The memory is in global memory.
GLOBAL_PROBLEMS = {kind.dtype: problem_of(kind, (260, 37)) for kind in KINDS}


@settings(max_examples=40)
@given(
    st.sampled_from(WAYS),
    st.sampled_from(KINDS),
    st.integers(0, 99),
    st.sampled_from(LENGTHS),
    st.sampled_from(DIMS),
    st.sampled_from(BATCHES),
)
def test_the_equation(way, kind, seed, length, dims, batch):
    law_the_equation(Emulator(way), kind, seed, length, dims, batch)


@pytest.mark.parametrize("features", [32, 64, 128, 256])
def test_every_size_of_a_memory_in_registers(features):
    law_the_equation(Emulator(), KINDS[0], 0, 6, (features, 4), (2,))


@pytest.mark.parametrize("problems", [PROBLEMS, GLOBAL_PROBLEMS])
@pytest.mark.parametrize("name", GLOBAL_PROBLEMS)
def test_results_do_not_depend_on_the_order_of_threads(name, problems):
    dims = (21, 37) if problems is PROBLEMS else (260, 37)
    kind = next(kind for kind in KINDS if kind.dtype == name)
    terms, memory = kind.terms(1, 11, dims)
    results = [recurrent(Emulator(way), memory, terms) for way in WAYS]
    for arrays in zip(*results, strict=True):
        assert len({x.tobytes() for x in arrays}) == 1


# Terms of operators.

OPERATORS = (
    *("delta_rule", "gated_delta_rule", "kda", "gdn2", "comba", "gla", "rwkv6"),
    *("dplr", "rwkv7", "gated_delta_product", "simple_gla"),
)


def inputs_of(name, lead=(2, 2), length=9, features=6, values=5):
    """Draw the inputs of an operator, and an initial state."""
    rng = np.random.default_rng(0)
    definition = DEFINITIONS[name]
    sizes = {"t": length, "s": 2 * length, "k": features, "v": values}
    inputs = {}
    for name_, letters in definition.axes.items():
        own = tuple(sizes[letter] for letter in letters)
        shape = own if letters == "k" else (*lead, *own)
        x = rng.normal(size=shape) / features**0.5
        if name_ == "log_decay":
            x = -abs(x)
        if name_ in ("beta", "erase_gate", "write_gate", "removal_rate"):
            x = rng.random(shape)
        inputs[name_] = x
    state = State(rng.normal(size=(*lead, features, values)), None)
    return definition, inputs, state


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name):
    operator = getattr(linkern, name)  # which imports its definition
    definition, inputs, state = inputs_of(name)
    taken = []

    def form(memory, terms):
        """Replace the form that the operator asks for."""
        taken.append(terms)
        return recurrent(Emulator(), memory, terms)

    ready = operators.prepare(definition, inputs)
    output, after = definition.attend(form, state, **ready.inputs)
    result = operator(**inputs, initial_state=state, form="recurrent")
    assert len(taken) == 1
    close((output, after.memory), (result.output, result.state.memory))


# Layouts.


@pytest.mark.parametrize("how", ["tokens first", "backwards", "every other entry"])
def test_any_strides(how):
    terms, memory = KINDS[0].terms(0, 10, (6, 8), (2, 3))
    strided_terms = terms.mapped(lambda x: strided(x, how))
    assert strided_terms.query.strides != terms.query.strides
    close(recurrent(Emulator(), memory, strided_terms), expected(memory, terms))


def test_leading_axes_broadcast():
    terms, memory = KINDS[0].terms(0, 5, (6, 8), (2, 3))
    narrow = terms._replace(key=terms.key[:, :1], log_decay=terms.log_decay[0])
    whole = narrow._replace(
        key=np.broadcast_to(narrow.key, terms.key.shape),
        log_decay=np.broadcast_to(narrow.log_decay, terms.log_decay.shape),
    )
    close(
        recurrent(Emulator(), memory[0], narrow),
        expected(memory[:1] + 0 * memory, whole),
    )


def test_terms_of_several_dtypes_are_widened():
    terms, memory = KINDS[3].terms(0, 5, (6, 8))
    mixed = terms._replace(erase=terms.erase.astype(np.float32) / 3)
    output, after = recurrent(Emulator(), memory, mixed)
    assert output.dtype == np.float16
    close((output, after), expected(memory, mixed))


class Misaligned(Emulator):
    """A device whose arrays begin one entry after a multiple of 16 bytes."""

    def empty(self, shape, dtype):
        numbers = super().empty((int(np.prod(shape)) + 4,), dtype)
        first = -numbers.ctypes.data % 16 // numbers.itemsize + 1
        return numbers[first:][: int(np.prod(shape))].reshape(shape)


def test_memories_need_no_alignment():
    terms, memory = KINDS[0].terms(0, 5, (6, 8))
    results = recurrent(Misaligned(), memory, terms)
    assert results[1].ctypes.data % 16
    close(results, expected(memory, terms))


def test_inputs_stay_as_they_are():
    terms, memory = KINDS[0].terms(0, 7, (6, 8))
    before = [x.copy() for x in (memory, *terms[:5])]
    recurrent(Emulator(), memory, terms)
    for x, y in zip((memory, *terms[:5]), before, strict=True):
        np.testing.assert_array_equal(x, y)


def test_an_infinity_stays_in_its_column():
    law_an_infinity_stays_in_its_column(Emulator())


def test_transpose_state_is_refused():
    terms, memory = KINDS[0].terms(0, 3, (4, 4))
    with pytest.raises(ValueError, match="`transpose_state` terms have no kernel"):
        recurrent(Emulator(), memory, terms._replace(transpose_state=True))
