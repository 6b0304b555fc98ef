"""Equal bits in any batch and in parts: promised, kept, broken, not promised."""

import pytest

from linkern.testing.kernels.assembly import Parts, packed, recurrence, stateful
from linkern.testing.kernels.correct import quadratic
from linkern.testing.kernels.mutants import MUTANTS
from tests.testing.checks.test_checks import judge

CHUNKS = {"batch_invariant": "true", "chunk_size": 16}
PACKED = packed(recurrence("kda"), "kda")


@pytest.mark.parametrize("check", ["batch_invariance", "split_invariance"])
@pytest.mark.parametrize(
    ("kernel", "op", "contract"),
    [
        (stateful(Parts()), "linear_attention", CHUNKS),
        (stateful(Parts(chunk=1)), "linear_attention", {"batch_invariant": "true"}),
        (PACKED, "kda", CHUNKS),
    ],
)
def test_kernels_that_keep_their_promise_pass(kernel, op, contract, check):
    result = judge(kernel, check, op=op, contract=contract)
    assert result.verdict == "passed", result.message


def test_chunks_that_start_with_the_call_are_not_the_same_bits_in_parts():
    kernel = stateful(Parts(chunk=16))
    anywhere = {"batch_invariant": "true"}
    result = judge(kernel, "split_invariance", contract=anywhere)
    assert result.verdict == "failed"
    assert "other bits" in result.message
    rows = {"batch_invariant": "rows"}
    assert judge(kernel, "split_invariance", contract=rows).verdict == "skipped"
    assert judge(kernel, "batch_invariance", contract=rows).verdict == "passed"


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, mutant in MUTANTS.items()
        if mutant.checks[0] in ("batch_invariance", "split_invariance")
    ],
)
def test_kernels_that_break_it_are_right_but_for_their_bits(name):
    mutant = MUTANTS[name]
    declared = {"op": mutant.op, "contract": mutant.contract, "profile": "smoke"}
    assert judge(mutant.kernel, "value_on_reals", **declared).verdict == "passed"


@pytest.mark.parametrize("check", ["batch_invariance", "split_invariance"])
def test_without_a_promise_it_is_not_judged(check):
    result = judge(stateful(Parts()), check)
    assert result.verdict == "skipped"
    assert "declare batch_invariant=true" in result.remedies


def test_a_layout_without_a_batch_has_no_rows():
    contract = {"batch_invariant": "rows", "layout": "td"}
    result = judge(quadratic, "batch_invariance", contract=contract)
    assert result.verdict == "skipped"
    assert "no batch" in result.message
