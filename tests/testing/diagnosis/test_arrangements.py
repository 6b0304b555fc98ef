"""Bits that depend on the rest of a call are told where a target promises equal ones."""

import numpy as np
import pytest

from linkern.testing import OPERATORS, Contract
from linkern.testing.diagnosis.arrangements import other_bits
from linkern.testing.kernels.assembly import Parts, assemble
from linkern.testing.kernels.correct import CORRECT
from linkern.testing.problems.context import Scope
from linkern.testing.target.process import InProcess
from linkern.testing.target.protocol import TargetConfig

CHUNKED = assemble(Parts())


def observed(kernel, **declared):
    target = InProcess(TargetConfig("test", op="linear_attention"), kernel)
    contract = Contract(**declared)
    scope = Scope(OPERATORS["linear_attention"], contract, "float32", target.interface)
    return other_bits(target, scope)


def nudged(chosen):
    """Return a kernel whose last bit is another one in some entries of a batch."""

    def kernel(query, key, value):
        output = CHUNKED(query, key, value)
        for n in range(len(query)):
            if chosen(n, len(query)):
                output[n] = np.nextafter(output[n], np.float32(np.inf))
        return output

    return kernel


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (lambda n, size: size > 4, "in batch sizes above 4"),
        (lambda n, size: size % 2 == 0, "in batch sizes that are multiples of 2"),
        (lambda n, size: n > 0, "in all batch sizes that were tried"),
        (
            lambda n, size: n == size - 1 and size > 2,
            "in batch sizes above 2, as the last of them,",
        ),
    ],
)
def test_the_batches_that_change_bits_are_said(chosen, words):
    diagnosis = observed(nudged(chosen), batch_invariant="rows")
    assert diagnosis.name == "not_batch_invariant"
    assert f"returns other bits for a sequence {words} than" in diagnosis.sentence
    assert diagnosis.declaration == ("batch_invariant=false",)
    assert observed(nudged(chosen)) is None


def continued(query, key, value, initial_state=None):
    """Return the output and the state, with other bits where one was given."""
    kernel = CORRECT["chunk_32_with_state"].kernel
    output, state = kernel(query, key, value, initial_state)
    if initial_state is not None:
        output = np.nextafter(output, np.float32(np.inf))
    return output, state


def test_bits_of_spans_are_compared_where_splits_are_promised():
    diagnosis = observed(continued, batch_invariant="true")
    assert diagnosis.name == "not_split_invariant"
    assert "split after 32 tokens" in diagnosis.sentence
    assert diagnosis.declaration == ("batch_invariant=rows",)
    assert observed(continued, batch_invariant="rows") is None


def test_what_cannot_be_called_is_not_compared():
    def alone(query, key, value):
        if len(query) > 1:
            raise ValueError
        return CHUNKED(query, key, value)

    assert observed(alone, batch_invariant="rows") is None
