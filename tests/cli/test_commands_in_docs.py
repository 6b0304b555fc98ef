"""Every `linkern` command in the pages is one that can be typed."""

import re
import shlex
from pathlib import Path

import click
import pytest

from linkern.cli import main
from linkern.cli.options import contract_of
from linkern.testing import CHECKS, OPERATORS, UsageError
from linkern.testing.spec.declarations import keywords

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCED = re.compile(r"^```(?:console|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^|&& )\$? ?linkern (.+)$", re.MULTILINE)


def commands(page):
    """Return the commands of a page, each as one line."""
    blocks = FENCED.findall(page.read_text(encoding="utf-8"))
    text = "".join(block.replace("\\\n", " ") for block in blocks)
    return [line.strip() for line in COMMAND.findall(text)]


def refused(line):
    """Return why a command cannot be typed; None if it can."""
    name, *words = shlex.split(line, comments=True)
    try:
        # A command keeps the help options of its first context: `-h` is of the parent.
        parent = click.Context(main, **main.context_settings)
        command = main.get_command(parent, name)
        if command is None:
            return f"no command {name}"
        options = command.make_context(name, words, parent).params
        if "declare" in options:
            contract = contract_of({**options, "contract": None})
            keywords("--option", options["option"])
            if options["op"] is not None:
                contract.require_of(OPERATORS[options["op"]])
            unknown = {*options.get("check", ())} - {*CHECKS}
            return f"unknown {unknown}" if unknown else None
    except (click.ClickException, UsageError, KeyError) as error:
        return f"{error!r}: {error}"
    return None


@pytest.mark.parametrize(
    ("page", "line"),
    [(page.name, line) for page in PAGES for line in commands(page)],
)
def test_a_command_of_a_page_can_be_typed(page, line):
    assert refused(line) is None


def test_there_are_many():
    assert sum(len(commands(page)) for page in PAGES) > 60


@pytest.mark.parametrize(
    "line",
    [
        "verity a.py:f",
        "verify a.py:f --op kda --profil quick",
        "verify a.py:f --op kad",
        "verify a.py:f --op kda --check casualty",
        "verify a.py:f --op kda --declare layout=tbhd",
        "verify a.py:f --op kda --declare eps=1e-6",
        "verify a.py:f --op kda --option n",
    ],
)
def test_each_kind_of_mistake_is_seen(line):
    assert refused(line)


@pytest.mark.parametrize(
    ("path", "pattern", "more"),
    [
        (".pre-commit-hooks.yaml", r"entry: linkern (.+)", "kernels.py:f --op gla"),
        (
            "examples/github/verify-kernel.yml",
            r"linkern (verify(?:.|\n)+?)\n +- if",
            "",
        ),
    ],
)
def test_what_others_run_for_us_can_be_typed(path, pattern, more):
    (line,) = re.findall(pattern, (ROOT / path).read_text(encoding="utf-8"))
    words = f"{' '.join(line.split())} {more}"
    assert refused(words) is None
    assert refused(f"{words} --no-such-option") is not None
