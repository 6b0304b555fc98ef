"""Candidates of a folder: the kernel of each of its files."""

from pathlib import Path

from linkern.testing.errors import UsageError
from linkern.testing.target.sources import functions, line_of, texts

__all__ = ["candidates", "files_of"]


def candidates(place: str) -> list[str]:
    """Return the targets of a folder, ``folder`` or ``folder:attribute``.

    Parameters
    ----------
    place : str
        With an attribute, every file that defines it is a candidate; without one,
        every file is, and its only public function is the kernel. Files whose names
        begin with an underscore are none.

    Raises
    ------
    UsageError
        If there is no such folder, no candidate in it, or a file with no public
        function or several.
    """
    name, _, attribute = (place, "", "") if _is(place) else place.rpartition(":")
    if not _is(name):
        msg = f'--all takes a folder, "folder" or "folder:attribute", got "{place}".'
        raise UsageError(msg)
    files = sorted(x for x in Path(name).glob("*.py") if x.name[0] != "_")
    if attribute:
        targets = [f"{file}:{attribute}" for file in files]
        targets = [target for target in targets if line_of(target) is not None]
    else:
        targets = [f"{file}:{_only_function(file)}" for file in files]
    if not targets:
        msg = f"no file {name}/*.py defines {attribute or 'a public function'}."
        raise UsageError(msg)
    return targets


def files_of(target: str) -> dict[str, str]:
    """Return the files of a candidate: its own, and what that imports beside it."""
    path = Path(target.rpartition(":")[0])
    try:
        return texts(path)
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{path} and what it imports must be text in UTF-8: {error}."
        raise UsageError(msg) from error


def _is(name: str) -> bool:
    return bool(name) and Path(name).is_dir()


def _only_function(file: Path) -> str:
    names = functions(file)
    if len(names) != 1:
        listed = f"several ({', '.join(names)})" if names else "none"
        msg = (
            f"{file} must define one public function, and defines {listed}; "
            f'name the kernel, "{file.parent}:attribute".'
        )
        raise UsageError(msg)
    return names[0]
