"""Copies of the files of a candidate, and verdicts that name the candidate itself."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

__all__ = ["copied", "renamed"]

Verdict = TypeVar("Verdict")


@contextmanager
def copied(files: Mapping[str, str]) -> Iterator[Path]:
    """Write files to a folder that exists for one verdict.

    Parameters
    ----------
    files : mapping of str to str
        Contents by name of the file.

    Yields
    ------
    Path
        The folder; what a candidate has left in it is removed as well.
    """
    with tempfile.TemporaryDirectory(
        prefix="linkern-", ignore_cleanup_errors=True
    ) as name:
        folder = Path(name)
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
        yield folder


def renamed(verdict: Verdict, copy: str, original: str) -> Verdict:
    """Return a verdict whose texts name the candidate, not the copy that was judged.

    Parameters
    ----------
    verdict : dataclass, mapping, tuple, list or str
        It and all inside of it; anything else stays as it is.
    copy, original : str
        Paths of both files.

    Examples
    --------
    >>> renamed({"again": "verify /tmp/x/k.py:f"}, "/tmp/x/k.py", "k.py")
    {'again': 'verify k.py:f'}
    """

    def changed(x: Any) -> Any:
        if isinstance(x, str):
            return x.replace(copy, original)
        if is_dataclass(x) and not isinstance(x, type):
            parts = {part.name: getattr(x, part.name) for part in fields(x)}
            return replace(x, **changed(parts))
        if isinstance(x, tuple):
            made = map(changed, x)
            return type(x)(*made) if hasattr(x, "_fields") else tuple(made)
        if isinstance(x, list):
            return [changed(y) for y in x]
        if isinstance(x, Mapping):
            return {key: changed(y) for key, y in x.items()}
        return x

    return cast(Verdict, changed(verdict))
