"""The text of a kernel with all it includes, as one string.

A compiler that gets one string needs no path to look for files, and a cache that hashes
it (CuPy's does, and does not look into files included) sees every change.
"""

import re
from functools import cache
from importlib.resources import files

__all__ = ["source"]

_FOLDER = files("linkern.kernels.cuda") / "src"
_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"$', re.MULTILINE)


@cache
def source(name: str) -> str:
    """Return the text of ``name.cu`` with every file that it includes, each once.

    A name is that of a file here, or a path to one elsewhere.
    """
    seen: set[str] = set()

    def whole(file: str) -> str:
        text = (_FOLDER / file).read_text(encoding="utf-8")
        return _INCLUDE.sub(included, text.replace("#pragma once\n", ""))

    def included(line: re.Match[str]) -> str:
        file = line[1]
        if file in seen:
            return ""
        seen.add(file)
        return whole(file)

    return whole(f"{name}.cu")
