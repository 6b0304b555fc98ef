"""Laws of calls, broken by kernels that are right besides."""

import numpy as np
import pytest

from linkern.testing import verify
from linkern.testing.diagnosis.behaviours.broken_laws import broken_law, reported_law
from linkern.testing.kernels.assembly import Parts, assemble
from linkern.testing.kernels.mutants import MUTANTS
from tests.testing.diagnosis.test_observed import opened

CHUNKED = assemble(Parts())


def in_place(query, key, value):
    value[...] = CHUNKED(query, key, value)
    return value


def refuses_nan(query, key, value):
    assert not np.isnan(value).any()
    return CHUNKED(query, key, value)


def refuses_strides(query, key, value):
    assert key.flags.c_contiguous
    return CHUNKED(query, key, value)


def test_an_output_in_the_memory_of_an_input_is_told_from_an_input_overwritten():
    observed = broken_law(*opened(in_place))
    assert observed.name == "overwrites_input"
    assert observed.declaration == ("mutates=value",)
    observed = broken_law(*opened(in_place, mutates=("value",)))
    assert observed.name == "shares_memory"
    assert observed.sentence.endswith("shares memory with its input value")
    assert observed.declaration == ()


def one_token_as_it_is(query, key, value):
    return value if value.shape[2] == 1 else CHUNKED(query, key, value)


def test_a_law_that_breaks_at_one_size_alone_is_the_cause():
    assert broken_law(*opened(one_token_as_it_is)) is None
    law = "inputs_untouched"
    report = verify(one_token_as_it_is, op="linear_attention", checks=(law,))
    cause = report.diagnosis
    assert cause.name == "shares_memory"
    assert "shares memory with its input value, at B=1 H=1 T=1 " in cause.sentence


def test_of_the_laws_that_verdicts_are_about_the_first_is_the_cause():
    verdicts = [
        ("causality", "the output before the change differs", "T=3"),
        ("thread_safety", "another output", "T=4"),
        ("inputs_untouched", "overwrote its input key", "T=5"),
    ]
    scope = opened(CHUNKED)[1]
    assert reported_law(verdicts[:1], scope) is None
    said = reported_law(verdicts, scope)
    assert said.sentence == "overwrote its input key, at T=5"
    assert said.declaration == ("mutates=key",)


@pytest.mark.parametrize("kernel", [refuses_nan, refuses_strides])
def test_an_exception_is_no_violation_of_the_law_in_which_it_is_raised(kernel):
    assert broken_law(*opened(kernel)) is None


@pytest.mark.parametrize(
    ("name", "declared"),
    [
        ("swallows_nan", {"nan_policy": "any"}),
        ("assumes_contiguous", {"strides": "contiguous"}),
        ("tile_by_batch", {"batch_invariant": "false"}),
    ],
)
def test_what_is_declared_is_no_violation(name, declared):
    kernel = MUTANTS[name]
    assert broken_law(*opened(kernel.kernel, **kernel.contract)).name
    assert broken_law(*opened(kernel.kernel, **{**kernel.contract, **declared})) is None
