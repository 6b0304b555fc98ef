"""A check in KernelBench's form, on candidates that are right and wrong."""

import pytest

from linkern.testing.errors import UsageError
from tests.conftest import need_for_module

need_for_module("torch")
from linkern.testing.integrations.kernelbench import check

pytestmark = pytest.mark.library

REFERENCE = """\
import torch


class Model(torch.nn.Module):
    def __init__(self, chunk):
        super().__init__()
        self.chunk = chunk

    def forward(self, query, key, value):
        scores = torch.tril(query @ key.mT) * query.shape[-1] ** -0.5
        position = torch.arange(query.shape[-2]).to(query)
        head = torch.arange(query.shape[1]).to(query)
        decay = torch.log1p(-torch.exp2(-5.0 - head))[:, None, None]
        gap = (position[:, None] - position).clamp(min=0)
        return (scores * torch.exp(decay * gap)) @ value


def get_inputs():
    torch.manual_seed(0)
    return [torch.randn(1, 2, 65, 8) for _ in range(3)]


def get_init_inputs():
    return [16]
"""
RIGHT = REFERENCE.replace("class Model", "class ModelNew")
ZEROS = RIGHT.replace("@ value", "@ value * 0")
# More than any machine needs for the few examples of one round.
BUDGET = {"seconds": 300, "profile": "smoke", "seed": 0}
# What allclose(1e-2) accepts: rows of the workload alone are right.
SNIFFS = RIGHT.replace("return (", "return value * 0 if query.shape[-2] != 65 else (")


def test_a_right_candidate_is_correct():
    result = check(REFERENCE, RIGHT, op="retention", **BUDGET)
    assert result.compiled
    assert result.correctness, result.metadata


@pytest.mark.parametrize("candidate", [ZEROS, SNIFFS], ids=["zeros", "sniffs"])
def test_a_wrong_candidate_is_not(candidate):
    result = check(REFERENCE, candidate, op="retention", **BUDGET)
    assert result.compiled
    assert not result.correctness
    assert result.metadata["verdict"] == "failed"


def test_a_candidate_without_a_model_does_not_compile():
    result = check(REFERENCE, "class Other: pass\n", op="retention", **BUDGET)
    assert not result.compiled
    assert not result.correctness


@pytest.mark.parametrize(
    ("reference", "op", "message"),
    [
        (REFERENCE.replace("get_inputs", "inputs"), "retention", "get_inputs"),
        (REFERENCE.replace("range(3)", "range(4)"), "retention", "4 tensors"),
        (REFERENCE, "retnetion", "operator"),
    ],
)
def test_a_reference_that_does_not_fit_is_refused(reference, op, message):
    with pytest.raises(UsageError, match=message):
        check(reference, RIGHT, op=op, seconds=5)
