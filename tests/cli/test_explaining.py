"""`linkern explain`: each check and operator, and names that are neither."""

import pytest
from click.testing import CliRunner

from linkern import cli
from linkern.testing import CHECKS, OPERATORS
from linkern.testing.checks import OF_LAUNCHES
from linkern.testing.kernels.sources import kernels_that_break
from linkern.testing.report.explanation import alone


def explain(*words):
    return CliRunner().invoke(cli.main, ["explain", *words])


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_is_explained(name):
    result = explain(name)
    assert result.exit_code == 0
    words = " ".join(result.output.split())
    check = CHECKS[name]
    for text in (check.statement, check.reaches, check.advice, *check.needs):
        assert text in words
    if name in OF_LAUNCHES:
        assert f" {alone(name)}\n" in result.output
        return
    kernel = kernels_that_break(name)[0]
    assert f"--op {kernel.op} --check {name}\n" in result.output
    assert f'"{kernel.name}",' in result.output.partition("breaks it:")[2]


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_is_explained(name):
    result = explain(name)
    assert result.exit_code == 0
    operator = OPERATORS[name]
    for one in operator.inputs:
        assert f"\n  {one.name} " in result.output
        assert all(f"`{alias}`" in result.output for alias in one.aliases)
    assert f"linkern verify TARGET --op {name}\n" in result.output
    function = "linear_attention" if operator.feature_map else operator.name
    assert f" linkern.{function}(" in result.output


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("causalty", 'did you mean "causality"?'),
        ("gated_delta", 'did you mean "gated_delta_rule"?'),
        ("layout", "it is a declaration: `linkern list declarations` explains it."),
        ("xyzzy", "`linkern list` shows all names."),
    ],
)
def test_an_unknown_name_is_refused_with_what_to_type(word, hint):
    result = explain(word)
    assert result.exit_code == 2
    expected = f'linkern: unknown check or operator "{word}"; {hint}\n'
    assert result.output == expected


def test_a_missing_name_is_refused():
    result = explain()
    assert result.exit_code == 2
    assert "Missing argument 'CHECK|OPERATOR'" in result.output
