"""Pages of the documentation that a program writes, and that CI compares with it."""

import argparse
import sys
from collections.abc import Callable
from difflib import unified_diff
from pathlib import Path

__all__ = ["write_or_compare"]


def write_or_compare(path: Path, page: Callable[[], str], about: str | None) -> int:
    """Write a page; with ``--check`` say how it differs, and return 1 if it does."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    text = page()
    if not check:
        path.write_text(text, encoding="utf-8")
        return 0
    written = path.read_text(encoding="utf-8")
    sys.stdout.writelines(
        unified_diff(written.splitlines(True), text.splitlines(True), "page", "now")
    )
    return int(written != text)
