"""Source text of a candidate, written to a file that the judge can name."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from linkern.testing.target.copies import copied

__all__ = ["code_in", "written"]

_BLOCK = re.compile(r"```(?:[Pp]ython|py)?[^\S\n]*\n(.*?)```", re.DOTALL)


def code_in(reply: str) -> str:
    r"""Return the last fenced block of code in the reply of a model.

    Parameters
    ----------
    reply : str
        Text; without a fence it is taken for code as it is.

    Examples
    --------
    >>> code_in("Here it is:\n```python\nx = 1\n```\nDone.")
    'x = 1\n'
    """
    blocks = _BLOCK.findall(reply)
    return blocks[-1] if blocks else reply


@contextmanager
def written(files: Mapping[str, str], entry: str) -> Iterator[str]:
    """Write files to a temporary folder; yield the name of a function in the first.

    Parameters
    ----------
    files : mapping of str to str
        Contents by name of the file.
    entry : str
        Name of the function.

    Yields
    ------
    str
        ``path/to/first.py:entry``.
    """
    with copied(files) as folder:
        yield f"{folder / next(iter(files))}:{entry}"
