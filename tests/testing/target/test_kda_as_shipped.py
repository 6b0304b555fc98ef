"""KDA in the order of its published kernel: judged as it is called in models."""

import pytest

from tests.testing import sub_chunks
from tests.testing.sub_chunks import chunk_kda
from tests.testing.target.test_dialect import BOUNDED, LAWS, SERVING, failures


def test_sub_chunks_of_bounded_gates_are_right():
    assert failures(chunk_kda, checks=(*LAWS, "state_split"), **BOUNDED) == {}


@pytest.mark.parametrize("fault", [*sub_chunks.FAULTS, "unbounded"])
def test_faults_of_sub_chunks_are_caught(fault):
    broken = failures(chunk_kda, checks=("value_on_reals",), fault=fault, **BOUNDED)
    assert [*broken] == ["value_on_reals"]


def test_sub_chunks_overflow_where_gates_have_no_bound():
    checks = ("value_on_reals", "decay_extremes")
    assert {*failures(chunk_kda, checks=checks, **SERVING)} == {*checks}
