"""The recurrence token by token in the emulator: every operator that is data for it."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import linkern
from linkern.core.recurrence import Terms
from linkern.kernels.cuda.forward import recurrent
from linkern.operators import definition as operators
from linkern.state import State
from tests.kernels.cuda.emulator.device import Emulator
from tests.kernels.cuda.problems import BATCHES, DTYPES, WAYS, close, strided


class Kind(NamedTuple):
    """What the terms are; each kind is a kernel of its own."""

    dtype: str
    decay: str | None = None
    erase: bool = False
    early_erase: bool = False
    early_read: bool = False

    def terms(self, seed, length, dims, batch=(2,)):
        """Draw terms that the dtype has, and a memory to begin with."""
        rng = np.random.default_rng(seed)
        features, values = dims
        kind, wide = DTYPES[self.dtype], np.result_type(DTYPES[self.dtype], np.float32)

        def rows(size):
            return rng.normal(size=(*batch, length, size)) / max(1, size) ** 0.5

        decays = None
        if self.decay:
            size = features if self.decay == "feature" else 1
            decays = np.minimum(-rng.exponential(0.3, (*batch, length, size)), 0)
            # Some forget all there was.
            decays[rng.random(decays.shape) < 0.05] = -np.inf
            decays = decays.astype(wide)
        of = Terms(
            *(rows(size).astype(kind) for size in (features, features, values)),
            decays,
            rows(features).astype(kind) if self.erase else None,
            early_erase=self.early_erase,
            early_read=self.early_read,
        )
        return of, rng.normal(size=(*batch, *dims)).astype(wide)


def due(memory, of):
    """Return what is to be found: the equation, token by token, in float64."""
    memory = memory.astype(np.float64)
    of = of.mapped(lambda x: x.astype(np.float64))
    output = np.zeros(of.value.shape)
    for t in range(of.value.shape[-2]):
        here = of.span(slice(t, t + 1))
        left = 1.0 if of.log_decay is None else np.exp(here.log_decay).swapaxes(-1, -2)
        written = here.value
        if of.erase is not None:
            seen = memory if of.early_erase else left * memory
            written = written - here.erase @ seen
        after = left * memory + here.key.swapaxes(-1, -2) * written
        output[..., t : t + 1, :] = here.query @ (memory if of.early_read else after)
        memory = after
    return output, memory


# All that a template distinguishes, in few kernels that have it all.
KINDS = (
    Kind("float32", "token", erase=True),
    Kind("float64", "feature", erase=True, early_erase=True),
    Kind("bfloat16", "feature", early_read=True),
    Kind("float16", erase=True),
)
LENGTHS = (0, 1, 2, 4, 5, 33)
DIMS = ((1, 1), (3, 5), (32, 32), (33, 40), (0, 2), (2, 0), (260, 33))


def law_the_equation(device, kind, seed, length, dims, batch):
    of, memory = kind.terms(seed, length, dims, batch)
    close(recurrent(device, memory, of), due(memory, of))


def problem_of(kind, dims):
    """A call that goes through both buffers, and ends amid a span and a slice."""
    return lambda device: law_the_equation(device, kind, 1, 11, dims, (2,))


def law_an_infinity_stays_in_its_column(device):
    of, memory = KINDS[0].terms(0, 5, (21, 6))
    # So that rows read infinity, and not the difference of two of them.
    of = of._replace(query=abs(of.query), key=abs(of.key))
    of.value[..., -1, 2] = np.inf
    with np.errstate(invalid="ignore"):
        close(recurrent(device, memory, of), due(memory, of))


PROBLEMS = {kind.dtype: problem_of(kind, (21, 37)) for kind in KINDS}
# Rows of a memory that are loaded 16 bytes at a time.
PROBLEMS["whole vectors"] = problem_of(KINDS[0], (21, 36))
PROBLEMS["infinity"] = law_an_infinity_stays_in_its_column
# In a file of its own, where the memory is not in registers.
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
    of, memory = kind.terms(1, 11, dims)
    found = [recurrent(Emulator(way), memory, of) for way in WAYS]
    for arrays in zip(*found, strict=True):
        assert len({x.tobytes() for x in arrays}) == 1


# What operators say the terms are.

OPERATORS = (
    *("delta_rule", "gated_delta_rule", "kda", "gdn2", "comba", "gla", "rwkv6"),
    *("dplr", "rwkv7", "gated_delta_product", "simple_gla"),
)


def inputs_of(name, lead=(2, 2), length=9, features=6, values=5):
    """Draw what an operator takes, and a state to begin with."""
    rng = np.random.default_rng(0)
    definition = operators.DEFINITIONS[name]
    sizes = {"t": length, "s": 2 * length, "k": features, "v": values}
    found = {}
    for given_as, letters in definition.axes.items():
        own = tuple(sizes[letter] for letter in letters)
        shape = own if letters == "k" else (*lead, *own)
        x = rng.normal(size=shape) / features**0.5
        if given_as == "log_decay":
            x = -abs(x)
        if given_as in ("beta", "erase_gate", "write_gate", "removal_rate"):
            x = rng.random(shape)
        found[given_as] = x
    state = State(rng.normal(size=(*lead, features, values)), None)
    return definition, found, state


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_are_data_for_it(name):
    operator = getattr(linkern, name)  # which imports its definition
    definition, inputs, state = inputs_of(name)
    taken = []

    def form(memory, of):
        """Stand in for the order of sums that the operator asks for."""
        taken.append(of)
        return recurrent(Emulator(), memory, of)

    ready = operators.prepare(definition, inputs)
    found, after = definition.attend(form, state, **ready.inputs)
    result = operator(**inputs, initial_state=state, form="recurrent")
    assert len(taken) == 1
    close((found, after.memory), (result.output, result.state.memory))


# Layouts.


@pytest.mark.parametrize("how", ["tokens first", "backwards", "every other entry"])
def test_any_strides(how):
    of, memory = KINDS[0].terms(0, 10, (6, 8), (2, 3))
    given = of.mapped(lambda x: strided(x, how))
    assert given.query.strides != of.query.strides
    close(recurrent(Emulator(), memory, given), due(memory, of))


def test_leading_axes_broadcast():
    of, memory = KINDS[0].terms(0, 5, (6, 8), (2, 3))
    given = of._replace(key=of.key[:, :1], log_decay=of.log_decay[0])
    whole = given._replace(
        key=np.broadcast_to(given.key, of.key.shape),
        log_decay=np.broadcast_to(given.log_decay, of.log_decay.shape),
    )
    close(recurrent(Emulator(), memory[0], given), due(memory[:1] + 0 * memory, whole))


def test_terms_of_several_dtypes_are_widened():
    of, memory = KINDS[3].terms(0, 5, (6, 8))
    given = of._replace(erase=of.erase.astype(np.float32) / 3)
    output, after = recurrent(Emulator(), memory, given)
    assert output.dtype == np.float16
    close((output, after), due(memory, given))


class Misplaced(Emulator):
    """A device whose arrays begin one number behind a multiple of 16 bytes."""

    def empty(self, shape, dtype):
        numbers = super().empty((int(np.prod(shape)) + 4,), dtype)
        first = -numbers.ctypes.data % 16 // numbers.itemsize + 1
        return numbers[first:][: int(np.prod(shape))].reshape(shape)


def test_memories_may_lie_anywhere():
    of, memory = KINDS[0].terms(0, 5, (6, 8))
    found = recurrent(Misplaced(), memory, of)
    assert found[1].ctypes.data % 16
    close(found, due(memory, of))


def test_inputs_stay_as_they_are():
    of, memory = KINDS[0].terms(0, 7, (6, 8))
    before = [x.copy() for x in (memory, *of[:5])]
    recurrent(Emulator(), memory, of)
    for x, y in zip((memory, *of[:5]), before, strict=True):
        np.testing.assert_array_equal(x, y)


def test_what_is_infinite_stays_in_its_column():
    law_an_infinity_stays_in_its_column(Emulator())


def test_crosswise_terms_are_refused():
    of, memory = KINDS[0].terms(0, 3, (4, 4))
    with pytest.raises(ValueError, match="`transpose_state` terms have no kernel"):
        recurrent(Emulator(), memory, of._replace(transpose_state=True))
