"""Explanations: the operators to which a law applies, and the others."""

import numpy as np
import pytest

from linkern.testing import CHECKS, OPERATORS, UsageError
from linkern.testing.api import verify
from linkern.testing.report.explanation import explain, inapplicable, operators_of


def test_a_law_applies_to_the_operators_that_it_lists():
    for check in CHECKS.values():
        names = operators_of(check)
        assert names
        for operator in OPERATORS.values():
            assert (operator.name in names) != (check.name in inapplicable(operator))


def test_what_a_declaration_allows_is_no_matter_of_the_operator():
    assert "bad_input" not in inapplicable(OPERATORS["kda"])
    assert "scaling_of_keys" not in inapplicable(OPERATORS["linear_attention"])
    assert "causality" in inapplicable(OPERATORS["linear_attention_noncausal"])


def test_the_verdict_agrees_about_what_does_not_apply():
    def hgrn(x, g=None, initial_state=None):
        return np.zeros_like(x), np.zeros_like(x[..., :1, :])

    reasons = inapplicable(OPERATORS["hgrn"])
    report = verify(
        hgrn, op="hgrn", checks=[*reasons], dtypes=["float64"], profile="quick"
    )
    assert len(reasons) > 4
    assert {check.verdict for check in report.checks} == {"not_applicable"}


def test_an_unknown_name_is_refused():
    with pytest.raises(UsageError, match=r'did you mean "prefix"\?'):
        explain("prefixx")
