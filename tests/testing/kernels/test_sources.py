"""Each check has a kernel that breaks it, whose source can be shown."""

import ast

import pytest

from linkern.testing import CHECKS
from linkern.testing.api import verify
from linkern.testing.checks import OF_LAUNCHES
from linkern.testing.kernels.mutants import MUTANTS, Mutant
from linkern.testing.kernels.planted import PLANTED
from linkern.testing.kernels.sources import kernels_that_break, source_of

KERNELS = {**MUTANTS, **PLANTED}


def test_every_check_has_a_kernel_that_breaks_it():
    assert all(kernels_that_break(name) for name in {*CHECKS} - {*OF_LAUNCHES})
    assert not {*MUTANTS} & {*PLANTED}
    # None that a mutant is first to break already.
    first = {mutant.checks[0] for mutant in MUTANTS.values()}
    assert not first & {mutant.checks[0] for mutant in PLANTED.values()}


# Those of linear attention are judged in tests/testing/checks, mutants by their matrix.
@pytest.mark.parametrize("check", ["reduction", "shard_law", "time_reversal_adjoint"])
def test_the_kernel_that_is_shown_breaks_the_law(check):
    mutant = kernels_that_break(check)[0]
    report = verify(
        mutant.kernel,
        op=mutant.op,
        contract=mutant.contract,
        checks=[check],
        dtypes=["float32"],
        profile="quick",
    )
    assert report.verdict == "failed"


@pytest.mark.parametrize("name", KERNELS)
def test_the_source_of_a_kernel_is_whole(name):
    source = source_of(KERNELS[name])
    tree = ast.parse(source)
    entry = tree.body[-1].value
    assert entry.args[0].value == name
    if isinstance(entry.args[1], ast.Name):
        functions = (node for node in tree.body if isinstance(node, ast.FunctionDef))
        assert entry.args[1].id in {function.name for function in functions}


def test_a_kernel_that_is_entered_nowhere_has_no_source():
    with pytest.raises(LookupError, match="no module enters the kernel stranger"):
        source_of(Mutant("stranger", "kda", print, "", ("causality",)))
