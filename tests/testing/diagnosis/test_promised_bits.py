"""Bits that depend on the rest of a call are told where equal ones are promised."""

import numpy as np
import pytest

from linkern.testing.diagnosis.behaviours.observed import observed_after
from linkern.testing.kernels.assembly import Parts, assemble
from linkern.testing.kernels.correct import CORRECT
from tests.testing.diagnosis.test_observed import opened

CHUNKED = assemble(Parts())


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
    "chosen",
    [
        lambda n, size: size > 1,
        lambda n, size: n == size - 1 and size > 2,
        lambda n, size: n > 0,
    ],
)
def test_bits_that_depend_on_the_batch_are_told(chosen):
    observed = observed_after(*opened(nudged(chosen), batch_invariant="rows"))
    assert observed.name == "not_batch_invariant"
    assert "bits" in observed.sentence
    assert observed.declaration == ("batch_invariant=false",)
    assert observed_after(*opened(nudged(chosen))) is None


def continued(query, key, value, initial_state=None):
    """Return the output and the state, with other bits where one was given."""
    kernel = CORRECT["chunk_32_with_state"].kernel
    output, state = kernel(query, key, value, initial_state)
    if initial_state is not None:
        output = np.nextafter(output, np.float32(np.inf))
    return output, state


def test_bits_of_spans_are_compared_where_splits_are_promised():
    observed = observed_after(*opened(continued, batch_invariant="true"))
    assert observed.name == "not_split_invariant"
    assert "split" in observed.sentence or "cut" in observed.sentence
    assert observed.declaration == ("batch_invariant=rows",)
    assert observed_after(*opened(continued, batch_invariant="rows")) is None


def test_nothing_is_told_of_a_kernel_that_keeps_its_promise():
    kernel = CORRECT["recurrent_with_state"].kernel
    assert observed_after(*opened(kernel, batch_invariant="rows")) is None
