"""Ways to read a state: each is named, and none where states are right."""

import numpy as np
import pytest

from linkern.testing.diagnosis.diagnose import diagnose
from linkern.testing.diagnosis.states_read import READ, state_read
from linkern.testing.kernels.assembly import Parts, recurrence, stateful
from tests.testing.diagnosis.test_behaviour import opened

pytestmark = pytest.mark.usefixtures("exact_answers", "no_clock")

READ_AS = "a state read as (V, K)"
OF_NORMALIZERS = {"a memory without its normalizer", "a normalizer without its memory"}


def of_memory(words):
    """Return the change of a memory alone."""
    return lambda memory: READ[words]((memory,))[0]


@pytest.mark.parametrize(
    ("op", "words"),
    [
        *(("linear_attention", words) for words in READ),
        *(("simple_gla", words) for words in READ if words not in OF_NORMALIZERS),
        *(("gated_delta_rule", words) for words in READ if words not in OF_NORMALIZERS),
    ],
)
def test_each_way_is_named(op, words):
    if op == "linear_attention":
        kernel = stateful(Parts(received=READ[words]))
    else:
        kernel = recurrence(op, received=of_memory(words))
    assert state_read(*opened(kernel, op)).text == words


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
    assert state_read(*opened(kernel, "simple_gla")).text == READ_AS


def test_it_is_part_of_a_diagnosis():
    kernel = recurrence("simple_gla", received=of_memory("a state reshaped to (V, K)"))
    diagnosis = diagnose(*opened(kernel, "simple_gla"))
    assert diagnosis.by_what == "a state reshaped to (V, K)"
    assert diagnosis.where == "spans from 1 on"
    assert "its layout" in diagnosis.hint
