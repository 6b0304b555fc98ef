"""Runs as files of JSON: written, read again, and told from other files."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from linkern.bench.timing import Spread

__all__ = ["read", "rows_as", "write"]

Row = TypeVar("Row")


def write(data: Mapping[str, Any], path: Path) -> None:
    """Write values that JSON can hold."""
    text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    path.write_text(text, encoding="utf-8")


@contextmanager
def read(path: Path, schema: str, command: str) -> Iterator[Any]:
    """Lend what a file holds to who makes a run of it.

    Parameters
    ----------
    path : Path
        A file.
    schema : str
        Which it must have.
    command : str
        What writes such files.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If it is another, or nothing can be made of what it holds.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["schema"] != schema:
            msg = f"{path} has schema {found['schema']}, not {schema}."
            raise ValueError(msg)
        yield found
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        msg = f"{path} was not written by `{command}`."
        raise ValueError(msg) from error
    except UnicodeDecodeError as error:
        msg = f"{path} is not text."
        raise ValueError(msg) from error


def rows_as(kind: type[Row], found: Iterable[Mapping[str, Any]]) -> tuple[Row, ...]:
    """Return rows, a dataclass with a spread of seconds, without what is derived."""
    made: Any = kind
    own = made.__dataclass_fields__
    rows = []
    for row in found:
        fields = {name: x for name, x in row.items() if name in own}
        if fields["seconds"] is not None:
            fields["seconds"] = Spread(**fields["seconds"])
        rows.append(kind(**fields))
    return tuple(rows)
