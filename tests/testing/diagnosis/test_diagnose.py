"""Faults on no list are placed and measured; of right kernels nothing is said."""

import math

import numpy as np
import pytest

from linkern.testing import OPERATORS, Contract
from linkern.testing.diagnosis.diagnose import diagnose
from linkern.testing.problems.context import Scope
from linkern.testing.target.process import InProcess
from linkern.testing.target.protocol import TargetConfig
from tests.marks import every
from tests.testing.diagnosis.unlisted import dense, gla, lost, part, plus, window


def diagnosed(kernel, op="linear_attention", **declared):
    contract = Contract(**declared)
    config = TargetConfig("test", layout=contract.layout, op=op)
    target = InProcess(config, kernel)
    scope = Scope(OPERATORS[op], contract, "float32", interface=target.interface)
    return diagnose(target, scope)


def edges_of(chunk, place, **parts):
    return part(chunk=chunk, written=lost(place), **parts)


def late(output):
    return np.concatenate([output[..., :1, :], output[..., :-1, :]], -2)


def exchanged(output):
    output[:, :2] = output[:, 1::-1].copy()
    return output


@pytest.mark.parametrize("chunk", every(3, (16, 24, 40)))
@pytest.mark.parametrize("place", ["first", "last"])
def test_the_size_of_chunks_is_measured(chunk, place):
    diagnosis = diagnosed(edges_of(chunk, {"first": 0, "last": -1}[place]))
    assert diagnosis.stage == "output"
    assert f"the {place} source of every chunk of {chunk}" in diagnosis.where
    assert f"pairs across edges of chunks of {chunk}" in diagnosis.where


@pytest.mark.parametrize("width", every(2, (33, 50)))
def test_the_width_of_a_window_is_measured(width):
    diagnosis = diagnosed(dense(weights=window(width)))
    assert (diagnosis.where, diagnosis.by_what) == (
        f"sources {width} back or more",
        "0",
    )
    assert diagnosis.name == "output_lost"


@pytest.mark.parametrize("number", [3, -1, 0.25])
def test_a_constant_factor_is_measured(number):
    diagnosis = diagnosed(gla(finish=lambda o: number * o), "simple_gla")
    assert diagnosis.where == "everywhere"
    assert float(diagnosis.by_what) == number


def test_what_the_normaliser_lacks_is_measured():
    diagnosis = diagnosed(dense(divide=lambda n, d: n))
    assert (diagnosis.where, diagnosis.by_what) == ("everywhere", "denominator")
    assert diagnosis.declaration == ("normalize=false",)


@pytest.mark.parametrize("eps", every(2, (1e-6, 1e-3)))
def test_a_constant_in_the_denominator_can_be_declared(eps):
    assert diagnosed(dense(divide=plus(eps))).declaration == (f"eps={eps:g}",)


def test_what_is_declared_is_no_deviation():
    assert diagnosed(dense(divide=plus(1e-3)), eps=1e-3) is None
    assert diagnosed(dense(), eps=1e-3).declaration == ("eps=0",)


@pytest.mark.parametrize("op", ["linear_attention", "simple_gla"])
def test_nothing_is_said_of_a_right_kernel(op):
    kernel = {"linear_attention": dense, "simple_gla": gla}[op]()
    assert diagnosed(kernel, op) is None


def test_no_factor_is_said_of_two_faults_at_once():
    diagnosis = diagnosed(edges_of(16, -1, divide=plus(0.25)))
    assert diagnosis.by_what == "" or diagnosis.by_what.startswith("unlike any product")


def test_what_is_said_is_the_same_every_time():
    kernel = gla(finish=exchanged)
    first, second = (diagnosed(kernel, "simple_gla") for _ in range(2))
    assert first == second
    assert first.where == "heads before 2"


def test_another_arrangement_of_rows_is_no_product():
    diagnosis = diagnosed(gla(finish=late), "simple_gla")
    assert diagnosis.where != ""
    assert math.isnan(diagnosis.ratio) or diagnosis.ratio > 0
    assert diagnosis.by_what == "" or "row" in diagnosis.by_what


class Replaying:
    """Return the output of the call before if its query has the same shape."""

    def __init__(self):
        self.shape = self.output = None

    def __call__(self, query, key, value, log_decay):
        if self.shape != query.shape:
            self.shape, self.output = query.shape, gla()(query, key, value, log_decay)
        return self.output


def test_what_depends_on_other_calls_is_said_first():
    diagnosis = diagnosed(Replaying(), "simple_gla")
    assert (diagnosis.name, diagnosis.where) == ("replays_output", "")


def test_what_cannot_be_called_is_said_to_be_left_out():
    """A kernel that refuses a state is diagnosed by what remains."""

    def refusing(query, key, value, log_decay, initial_state=None):
        if initial_state is not None:
            raise NotImplementedError
        return 2 * gla()(query, key, value, log_decay)

    assert diagnosed(refusing, "simple_gla").where == "everywhere"
