"""CUDA C++ rewritten as C++: variables in shared memory, launches, local headers.

Lines keep their numbers, so that every message names a line of the file.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from linkern.testing.errors import UsageError

__all__ = ["blanked", "closing", "pieces", "rewritten"]

_HIDDEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL
)
# Headers that stand for what `program.hpp` includes anyway.
_PROVIDED = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*[<\"](?:cuda\w*\.h|device_launch_parameters\.h|"
    r"math_constants\.h|(?:torch|ATen|c10)/[\w/]+\.h)[>\"]",
    re.MULTILINE,
)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"[^\n]*$', re.MULTILINE)
_SHARED = re.compile(r"\b(?:(?:extern|static)\s+)*__shared__\b(?:\s+extern\b)?")
_CALLEE = re.compile(r"[\w:]+\s*$")
_SPACE = re.compile(r"(?:\bnamespace\b[\w\s:]*|\bextern\s*)$")
_OPEN, _CLOSE = "([{<", ")]}>"


def rewritten(path: Path) -> str:
    """Return a file with its local headers as C++ for the headers of the emulator.

    Raises
    ------
    UsageError
        If it cannot be read, or has a declaration that the emulator cannot hold.
    """
    return _expanded(path, set())


def blanked(text: str) -> str:
    """Return a text of the same length with spaces for comments and strings."""
    return _HIDDEN.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def closing(text: str, start: int) -> int:
    """Return the index of the bracket that closes the one at `start`."""
    opening, ending = text[start], _CLOSE[_OPEN.index(text[start])]
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == opening) - (text[i] == ending)
        if depth == 0:
            return i
    line = text.count("\n", 0, start) + 1
    msg = f"the bracket `{opening}` in line {line} is never closed."
    raise UsageError(msg)


def pieces(text: str) -> list[str]:
    """Split at the commas that are in no bracket."""
    parts, depth, start = [], 0, 0
    for i, character in enumerate(text):
        depth += (character in _OPEN) - (character in _CLOSE)
        if character == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]]


def _expanded(path: Path, once: set[Path]) -> str:
    """Return a file and its local headers, each under its own name and line numbers."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"`{path}` must be a file of CUDA C++, but: {error}."
        raise UsageError(msg) from None
    if "#pragma once" in blanked(text):
        once.add(path.resolve())
        text = text.replace("#pragma once", "")
    text = _PROVIDED.sub("", _launches(_shared(text, path)))
    parts, end = [f'#line 1 "{path.name}"\n'], 0
    for match in _INCLUDE.finditer(text):
        header = path.parent / match[1]
        if not header.exists():
            continue
        line = text.count("\n", 0, match.end()) + 2
        included = "" if header.resolve() in once else _expanded(header, once)
        parts += [text[end : match.start()], included]
        parts.append(f'\n#line {line} "{path.name}"')
        end = match.end()
    return "".join([*parts, text[end:]])


# Variables in shared memory.


def _shared(text: str, path: Path) -> str:
    """Replace each declaration of shared memory by a reference to that of the block."""
    code = blanked(text)
    parts, end = [], 0
    for number, match in enumerate(_SHARED.finditer(code)):
        stop = _end_of_statement(code, match.end())
        line = code.count("\n", 0, match.start()) + 1
        place = f"{path.name}:{line}"
        tag = "emulator_" + re.sub(r"\W", "_", f"{path.name}_{number}")
        dynamic = "extern" in match[0]
        local = _inside_function(code, match.start())
        if not dynamic and not local:
            msg = f"{place}: `__shared__` must be inside of a function; move it there."
            raise UsageError(msg)
        new = (_dynamic if dynamic else _static)(code[match.end() : stop], tag, local)
        lines = "\n" * code.count("\n", match.start(), stop)
        parts += [text[end : match.start()], new, lines]
        end = stop + 1
    return "".join([*parts, text[end:]])


def _static(declaration: str, tag: str, _: bool) -> str:
    names = [_declared(piece) for piece in pieces(declaration)]
    references = (
        f"auto& {name} = emulator::shared_variable<{tag}, {number}, "
        f"decltype({tag}::{name})>();"
        for number, name in enumerate(names)
    )
    body = " ".join(declaration.split())
    return " ".join([f"struct {tag} {{ {body}; }};", *references])


def _dynamic(declaration: str, tag: str, local: bool) -> str:
    name = _declared(declaration)
    body = " ".join(declaration.split()).replace("[]", "[1]", 1).replace("[ ]", "[1]")
    entry = f"std::remove_extent_t<decltype({tag}::{name})>"
    if local:
        memory = f"reinterpret_cast<{entry}*>(emulator::current->shared)"
        return f"struct {tag} {{ {body}; }}; auto* {name} = {memory};"
    return (
        f"struct {tag} {{ {body}; }}; static emulator::DynamicShared<{entry}> {name};"
    )


def _declared(piece: str) -> str:
    """Return the name that a declarator declares."""
    match = re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$", piece)
    if match is None:
        msg = f"`__shared__ {piece.strip()}` must be a list of names and array sizes."
        raise UsageError(msg)
    return match[1]


def _end_of_statement(code: str, start: int) -> int:
    depth = 0
    for i in range(start, len(code)):
        depth += (code[i] in "([{") - (code[i] in ")]}")
        if code[i] == ";" and depth == 0:
            return i
    msg = "a declaration of `__shared__` memory has no end."
    raise UsageError(msg)


def _inside_function(code: str, place: int) -> bool:
    """Return True if a brace other than that of a namespace is open at a place."""
    spaces = []
    for i in range(place):
        if code[i] == "{":
            spaces.append(_SPACE.search(code[max(0, i - 200) : i]) is not None)
        elif code[i] == "}" and spaces:
            spaces.pop()
    return not all(spaces)


# Launches.


def _launches(text: str) -> str:
    """Replace ``kernel<<<grid, block>>>(arguments)`` by a call of the scheduler."""
    code = blanked(text)
    parts, end = [], 0
    for start, stop, new in _each_launch(code, text):
        parts += [text[end:start], new]
        end = stop
    return "".join([*parts, text[end:]])


def _each_launch(code: str, text: str) -> Iterator[tuple[int, int, str]]:
    for match in re.finditer("<<<", code):
        start = _start_of_callee(code, match.start())
        stop = code.find(">>>", match.end())
        opening = re.compile(r"\s*\(").match(code, stop + 3)
        if stop < 0 or opening is None:
            line = code.count("\n", 0, match.start()) + 1
            msg = f"the launch in line {line} must be `kernel<<<...>>>(...)`."
            raise UsageError(msg)
        last = closing(code, opening.end() - 1)
        config, callee = text[match.end() : stop], text[start : match.start()]
        call = f"{callee}{text[opening.end() - 1 : last + 1]}"
        yield start, last + 1, f"(emulator::Launch({config}) = [=]() {{ {call}; }})"


def _start_of_callee(code: str, stop: int) -> int:
    """Return the start of a name, with template arguments, that ends at `stop`."""
    stop = len(code[:stop].rstrip())
    if code[stop - 1] == ">":
        depth = 0
        for i in range(stop - 1, -1, -1):
            depth += (code[i] == ">") - (code[i] == "<")
            if depth == 0:
                stop = i
                break
    match = _CALLEE.search(code[:stop])
    return match.start() if match else stop
