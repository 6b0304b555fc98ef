"""The group of commands: its table says what each command says of itself."""

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

import linkern
from linkern.cli import COMMANDS, main


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_agrees_with_the_command(name):
    command = main.get_command(click.Context(main), name)
    assert command.name == name
    assert command.get_short_help_str(1000) == COMMANDS[name][1]


def test_help_shows_every_command_on_one_line():
    lines = CliRunner().invoke(main, ["--help"]).output.splitlines()
    for name, (_, sentence) in COMMANDS.items():
        assert f"  {name}" in "".join(line for line in lines if sentence in line)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("verfy", "did you mean `linkern verify`?"),
        ("pkg.mod:f", "did you mean `linkern verify pkg.mod:f --op OPERATOR`?"),
        ("zzz", "the commands are verify, "),
    ],
)
def test_an_unknown_command_is_refused_with_the_nearest(word, hint):
    result = CliRunner().invoke(main, [word])
    assert result.exit_code == 2
    assert f'unknown command "{word}"; {hint}' in " ".join(result.output.split())


def test_an_unknown_option_is_refused_as_one():
    result = CliRunner().invoke(main, ["--nonsense"])
    assert result.exit_code == 2
    assert "--nonsense" in result.output


def test_the_package_is_the_command():
    words = [sys.executable, "-m", "linkern", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"linkern, version {linkern.__version__}"
