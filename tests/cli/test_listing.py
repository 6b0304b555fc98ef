"""`linkern list`: operators, checks, declarations, at 80 columns."""

import click
import pytest
from click.testing import CliRunner

from linkern import cli
from linkern.cli.columns import columns
from linkern.testing import CHECKS, OPERATORS
from linkern.testing.spec.declarations import DECLARATIONS

LISTS = {"operators": OPERATORS, "checks": CHECKS, "declarations": DECLARATIONS}


def listed(*words):
    return CliRunner().invoke(cli.main, ["list", *words])


@pytest.mark.parametrize("name", LISTS)
def test_each_list_has_its_names_and_no_others(name):
    result = listed(name)
    assert result.exit_code == 0
    lines = result.output.splitlines()
    starts = [line.split()[0] for line in lines if line[:2] == "  " != line[2:4]]
    assert starts == [*LISTS[name]]
    assert max(map(len, lines)) <= 80


def test_operators_and_checks_are_listed_without_an_argument():
    assert listed().output == listed("operators").output + listed("checks").output


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("opertors", 'unknown list "opertors"; did you mean "operators"?'),
        ("kda", "`linkern explain kda` explains it."),
        ("xyz", "known: checks, declarations, operators."),
    ],
)
def test_an_unknown_list_is_refused_with_what_to_type(word, hint):
    result = listed(word)
    assert result.exit_code == 2
    assert hint in result.output


def test_texts_are_wrapped_and_commands_are_not():
    rows = [("a", "word " * 30), ("run", "word " * 30)]
    text = click.unstyle(columns(rows, unbroken=["run"]))
    first, *_, last = text.splitlines()
    assert len(first) <= 80
    assert first.startswith("  a    word")
    assert last == "  run  " + ("word " * 30).strip()
