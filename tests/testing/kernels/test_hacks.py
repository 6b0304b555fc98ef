"""A target that attacks the judge instead of computing has a failed check for it."""

from pathlib import Path

import pytest

from linkern.testing import verify
from linkern.testing.kernels.mutants import MUTANTS
from tests.waiting import LONG

CHEATS = Path(__file__).parent / "cheats.py"


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("finds_the_answer", "value_on_integers"),
        ("compares_everything_equal", "value_on_integers"),
        ("stops_the_clock", "value_on_integers"),
        ("is_equal_to_all", "shape_and_dtype"),
    ],
)
def test_a_cheat_fails(name, check):
    report = verify(
        f"{CHEATS}:{name}",
        op="linear_attention",
        profile="quick",
        seed=0,
        checks=[check],
        dtypes=["float32"],
        timeout=LONG,
        jobs=1,
    )
    assert report.verdict == "failed"


def test_a_tensor_that_lies_is_no_tensor(torch):
    class Agreeable(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, inputs=(), named=None):
            return torch.ones((), dtype=torch.bool)

    def kernel(query, key, value):
        return torch.zeros_like(value).as_subclass(Agreeable)

    report = verify(
        kernel,
        op="linear_attention",
        framework="torch",
        profile="quick",
        seed=0,
        checks=["shape_and_dtype"],
        dtypes=["float32"],
    )
    assert report.verdict == "failed"
    assert "not an array of its library" in report.checks[0].message


def test_hacks_are_of_several_kinds():
    hacks = [mutant for mutant in MUTANTS.values() if mutant.hack]
    assert len(hacks) >= 10
    assert len({mutant.op for mutant in hacks}) >= 3
