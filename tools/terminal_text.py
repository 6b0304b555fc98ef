"""Write what commands print into the pages that show it.

    python tools/terminal_text.py            # run the commands, write the pages
    python tools/terminal_text.py --check    # run them, and compare
    python tools/terminal_text.py docs/quickstart.md --check

A block ``text`` that begins with ``$ linkern`` is a command and what it prints. If a
line is, or ends in, ``...``, it is an excerpt: it is compared and never written.
Numbers with a point may differ in the last digits from machine to machine, and what is
drawn differs from one version of Hypothesis to the next: sizes, entries and literals of
the smallest input, the count of examples. Their digits are not compared. Commands run
with a copy of the package under `site-packages`, as if it were installed.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Block", "blocks", "differences", "rewritten"]

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_BLOCK = re.compile(
    r"^```text\n(?P<command>\$ linkern (?:[^\n]*\\\n)*[^\n]*)\n"
    r"(?P<shown>(?:(?!```)[^\n]*\n)*)```$",
    re.MULTILINE,
)
_REAL = re.compile(r"-?\d+(?:\.\d+(?:e[+-]?\d+)?|e[+-]?\d+)")
# Lines and literals whose numbers are drawn.
_DRAWN = re.compile(r"^(tried: |  (smallest|input|entry|got|expected|bound) )")
_LITERAL = re.compile(r"\[[^\]]*\]|reshape\([^)]*\)")
_ELLIPSIS = "..."
Run = Callable[[list[str]], str]


@dataclass(frozen=True)
class Block:
    """A command as a page shows it, and what the page says that it prints."""

    command: str
    shown: str

    @property
    def words(self) -> list[str]:
        """The arguments of ``linkern``."""
        line = self.command.replace("\\\n", " ")
        return shlex.split(line.removeprefix("$ linkern"))

    @property
    def is_excerpt(self) -> bool:
        """True if lines are left out."""
        return any(line.endswith(_ELLIPSIS) for line in self.shown.splitlines())


def blocks(text: str) -> list[Block]:
    """Return the commands of a page with what it says that they print."""
    return [Block(one["command"], one["shown"]) for one in _BLOCK.finditer(text)]


def rewritten(text: str, run: Run) -> str:
    """Return a page with what its commands print now; excerpts stay."""

    def block(match: re.Match[str]) -> str:
        one = Block(match["command"], match["shown"])
        shown = one.shown if one.is_excerpt else run(one.words)
        return f"```text\n{one.command}\n{shown}```"

    return _BLOCK.sub(block, text)


def differences(text: str, run: Run) -> list[str]:
    """Return a sentence for each command that does not print what a page says."""
    wrong = []
    for block in blocks(text):
        printed = run(block.words)
        line = _first_difference(block, printed)
        if line:
            wrong.append(f"{block.command}\n  does not print: {line}\n{printed}")
    return wrong


def _first_difference(block: Block, printed: str) -> str:
    """Return the first line of a block that was not printed; empty if there is none."""
    shown, lines = block.shown.splitlines(), printed.splitlines()
    if not block.is_excerpt:
        pairs = zip(shown, lines, strict=False)
        for expected, got in pairs:
            if _masked(expected) != _masked(got):
                return expected
        longer = shown[len(lines) :] or lines[len(shown) :]
        return longer[0] if longer else ""
    rest = iter(lines)
    for expected in shown:
        start = _masked(expected.removesuffix(_ELLIPSIS).rstrip())
        if not any(_masked(got).startswith(start) for got in rest):
            return expected
    return ""


def _masked(line: str) -> str:
    masked = _REAL.sub("#", _LITERAL.sub("[#]", line))
    if _DRAWN.match(masked):
        masked = re.sub(r"\b\d+\b", "#", masked)
    return re.sub(r"(?<=\S) +", " ", masked).rstrip()


def printed_by(words: list[str], folder: Path) -> str:
    """Return what the command prints, from a copy of the package in a folder."""
    program = folder / "bin" / "linkern"
    if not program.exists():
        shutil.copytree(ROOT / "linkern", folder / "site-packages" / "linkern")
        program.parent.mkdir()
        program.write_text("from linkern.cli import main\n\nmain()\n")
    path = str(folder / "site-packages")
    done = subprocess.run(
        [sys.executable, str(program), *words],
        cwd=ROOT,
        # One thread: what is judged must not depend on what else the machine does.
        env={**os.environ, "PYTHONPATH": path, "NO_COLOR": "1", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    lines = [line.rstrip() for line in done.stdout.strip("\n").splitlines()]
    return "\n".join(lines) + "\n"


def main(pages: Iterable[Path], check: bool) -> int:
    """Write or compare the pages; 1 if one differs."""
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        printed: dict[str, str] = {}

        def run(words: list[str]) -> str:
            line = shlex.join(words)
            if line not in printed:
                printed[line] = printed_by(words, Path(folder))
            return printed[line]

        for page in pages:
            text = page.read_text(encoding="utf-8")
            if not check:
                text = rewritten(text, run)
                page.write_text(text, encoding="utf-8")
            wrong += [f"{page.name}: {one}" for one in differences(text, run)]
    sys.stdout.writelines(f"{one}\n" for one in wrong)
    return int(bool(wrong))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="*", type=Path, default=PAGES)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    sys.exit(main(options.pages, options.check))
