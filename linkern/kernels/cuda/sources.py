"""The source text of a kernel with all its includes, as one string.

A compiler that gets one string needs no include path, and a cache that hashes the
string sees every change (CuPy's does not hash included files).
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

    `name` is a file in ``src/``, or a path to one elsewhere.
    """
    seen: set[str] = set()

    def expanded(file: str) -> str:
        text = (_FOLDER / file).read_text(encoding="utf-8")
        return _INCLUDE.sub(include, text.replace("#pragma once\n", ""))

    def include(line: re.Match[str]) -> str:
        file = line[1]
        if file in seen:
            return ""
        seen.add(file)
        return expanded(file)

    return expanded(f"{name}.cu")
