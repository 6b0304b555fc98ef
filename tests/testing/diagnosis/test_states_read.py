"""Ways to read a state: each is named, and none where states are right."""

import numpy as np
import pytest

import linkern
from linkern.testing.diagnosis.alternatives.states_read import WAYS, state_read
from linkern.testing.diagnosis.diagnose import diagnose
from linkern.testing.kernels.assembly import Parts, recurrence, stateful
from linkern.testing.kernels.mutants import MUTANTS
from tests.testing.diagnosis.test_observed import opened

pytestmark = pytest.mark.usefixtures("exact_answers", "no_clock")

# Of mutants, the words of what is read.
MUTANTS_READ = {
    "normalizer_of_state_ignored": "a state without its normalizer",
    "weights_of_the_state_lost": "a state with zeros for its normalizer",
    "momentum_of_the_state_lost": (
        "a state with zeros in the second k of (2k), its memory"
    ),
    "angle_of_the_state_lost": "a state with zeros in p of (p+k+v), its normalizer",
    "last_token_of_the_state_lost": (
        "a state with zeros in k of (p+k+v), its normalizer"
    ),
}


def read_as(words, state):
    return WAYS[words](state, None)


@pytest.mark.parametrize("words", WAYS)
@pytest.mark.parametrize("op", ["linear_attention", "simple_gla", "gated_delta_rule"])
def test_each_way_is_named(op, words):
    if op == "linear_attention":
        kernel = stateful(Parts(received=lambda state: read_as(words, state)))
    else:
        kernel = recurrence(op, received=lambda memory: read_as(words, (memory,))[0])
        # They have no other part.
        words = words.replace("the memory of head 0", "the state of head 0")
    assert state_read(*opened(kernel, op)).text == words


@pytest.mark.parametrize("name", MUTANTS_READ)
def test_parts_that_are_lost_are_named(name):
    kernel = MUTANTS[name]
    read = state_read(*opened(kernel.kernel, kernel.op, **kernel.contract))
    assert read.text == MUTANTS_READ[name]


def test_a_memory_that_is_lost_is_a_part():
    kernel = stateful(Parts(received=lambda state: (0 * state[0], state[1])))
    assert state_read(*opened(kernel)).text == "a state without its memory"


@pytest.mark.parametrize(("piece", "first", "end"), [("1", 0, 1), ("k", 1, 5)])
def test_terms_of_a_series_are_parts_of_a_normalizer(piece, first, end):
    """A kernel counts its own tokens alone, or sums their keys, and reads the rest."""

    def kernel(query, key, value, initial_state=None):
        if initial_state is not None:
            sums = initial_state[1].copy()
            sums[..., first:end] = 0
            initial_state = linkern.State(initial_state[0], sums)
        result = linkern.based(query, key, value, initial_state=initial_state)
        return result.output, result.state

    words = f"a state with zeros in {piece} of (1+k+k^2), its normalizer"
    assert state_read(*opened(kernel, "based")).text == words


def test_zeros_that_count_as_tokens_are_named():
    """A slot has the weight 1 for a token of zeros, in the state that is handed on."""

    def kernel(query, key, value, slots, initial_state=None):
        inputs = query, key, value, slots
        output = linkern.abc(*inputs, initial_state=initial_state).output
        width = [(0, 0), (0, 0), (0, -query.shape[2] % 32), (0, 0)]
        padded = (np.pad(x, width) for x in inputs)
        return output, linkern.abc(*padded, initial_state=initial_state).state

    words = "a state with zeros counted as tokens, up to a multiple of 32"
    assert state_read(*opened(kernel, "abc")).text == words


def test_nothing_is_said_of_other_states():
    assert state_read(*opened(stateful(Parts()))) is None
    kernel = stateful(Parts(received=lambda state: (2 * state[0], state[1])))
    assert state_read(*opened(kernel)) is None
    kernel = stateful(Parts(received=lambda state: tuple(np.nan * x for x in state)))
    assert state_read(*opened(kernel)) is None


def refuses_others(memory):
    assert memory.shape[-1] == memory.shape[-2]
    return np.swapaxes(memory, -1, -2)


def test_a_transpose_needs_no_other_sizes():
    kernel = recurrence("simple_gla", received=refuses_others)
    assert state_read(*opened(kernel, "simple_gla")).text == "a state read as (V, K)"


def test_it_is_part_of_a_diagnosis():
    words = "a state reshaped to (V, K)"
    kernel = recurrence(
        "simple_gla", received=lambda memory: read_as(words, (memory,))[0]
    )
    diagnosis = diagnose(*opened(kernel, "simple_gla"))
    assert diagnosis.by_what == words
    assert (diagnosis.stage, diagnosis.where) == ("output", "spans from 1 on")
    assert "in the layout of the final one" in diagnosis.hint


def test_without_a_place_of_its_own_it_is_in_later_spans():
    kernel = MUTANTS["weight_of_the_state_lost"]
    diagnosis = diagnose(*opened(kernel.kernel, kernel.op, **kernel.contract))
    assert diagnosis.by_what == "a state with zeros for its normalizer"
    assert diagnosis.where == "spans from 1 on"


def test_of_rows_it_is_the_output_that_is_wrong():
    kernel = MUTANTS["normalizer_of_the_state_lost"]
    diagnosis = diagnose(*opened(kernel.kernel, kernel.op, **kernel.contract))
    assert diagnosis.by_what == "a state without its normalizer"
    assert diagnosis.stage == "output"
