"""Words of places and factors that mean the same.

Two index sets are the same if they hold of the same of many places, two factors if they
have the same value for any quantities. Statements that are about no place, and factors
that are no formula, are compared word by word.
"""

import re
from functools import cache
from typing import Any

import numpy as np

__all__ = ["same_factor", "same_set"]

POINTS = 200_000


def _fits(text: str, pattern: str) -> bool:
    """Return True if a text is a pattern in which stars stand for any words."""
    return bool(re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text))


# -- sets


def same_set(text: str, right: str) -> bool:
    """Return True if two sets of words hold of the same places."""
    known, flags = _points(), {}
    masks = [_holds(x, known, right, flags) for x in (text, right)]
    counted = np.ones(POINTS, bool)
    if "ahead" not in text + right:
        counted &= known["back"] >= 0
    if "initial state" not in text + right:
        counted &= known["source"] >= 0
    return bool((masks[0] == masks[1])[counted].all())


@cache
def _points() -> dict[str, Any]:
    """Return many places: near each other and far, in short sequences and in long."""
    rng = np.random.default_rng(0)
    lengths = (1, 2, 9, 17, 40, 100, 128, 150, 300, 513, 600, 1030, 2100, 4200, 70000)
    length = rng.choice(lengths, POINTS)
    draw = rng.random((4, POINTS))
    row = np.minimum((draw[0] * length).astype(int), length - 1)
    edge = rng.choice((16, 64, 256, 4096), POINTS)
    row = np.where(draw[1] < 0.2, np.minimum(row // edge * edge, length - 1), row)
    back = (2.0 ** (draw[2] * 17)).astype(int) - 1
    source = np.where(draw[3] < 0.3, (draw[2] * length).astype(int), row - back)
    source = np.where(draw[3] > 0.95, row + rng.integers(1, 4, POINTS), source)
    known = {"length": length, "row": row, "source": np.clip(source, -1, length - 1)}
    known["written"] = (draw[2] * (known["source"] + 1)).astype(int)
    sizes = {"head": 4, "batch": 3, "sequence": 4, "span": 3, "micro-step": 2}
    sizes |= {"key channel": 140, "value channel": 40, "slot": 4, "level": 6}
    known |= {name: rng.integers(0, n, POINTS) for name, n in sizes.items()}
    known |= {f"end of {name}": np.full(POINTS, n) for name, n in sizes.items()}
    known["end of key channel"] = known["key channel"] + rng.integers(1, 30, POINTS)
    known |= {f"end of {name}": length for name in ("row", "source", "written")}
    known["back"] = row - known["source"]
    return known


def _holds(text: str, known: dict[str, Any], right: str, flags: dict[str, Any]) -> Any:
    """Return the places that a set holds of; `flags` are those of unknown words."""
    unknown = re.split(" and |, or ", right)
    result = np.zeros(POINTS, bool)
    for part in text.split(", or "):
        inside = np.ones(POINTS, bool)
        for atom in part.split(" and "):
            name = next((x for x in unknown if _fits(atom, x)), atom)
            holds = None if "*" in name else _atom(atom, known)
            if holds is None:
                seed = sum(map(ord, name))
                random = np.random.default_rng(seed).random(POINTS) < 0.5
                holds = flags.setdefault(name, random)
            inside &= holds
        result |= inside
    return result


_AXIS = (
    "(row|source|written|head|batch|sequence|span|micro-step|key channel|value channel"
    "|slot|level)"
)
_ENTRY = r"(?: entry| entries| tokens?|s)?"


def _atom(text: str, p: dict[str, Any]) -> Any:
    """Return the places that one statement holds of; None if it is about none."""
    text = "batch entry 0" if text == "the first batch entry" else text
    if text == "everywhere":
        return np.ones(POINTS, bool)
    for pattern, test in _STATEMENTS:
        match = re.fullmatch(pattern, text)
        if match:
            groups = [int(x) if x.isdigit() else x for x in match.groups()]
            return test(p, *groups)
    match = re.fullmatch(rf"{_AXIS}{_ENTRY} other than (.+)", text)
    inner = _atom(match[2], p) if match else None
    return None if inner is None else ~inner


def _chunks(p: dict[str, Any], n: int) -> Any:
    return p["row"] // n - p["source"] // n


def _left(p: dict[str, Any], axis: str) -> Any:
    return p[f"end of {axis}"] - p[axis]


_STATEMENTS: tuple[tuple[str, Any], ...] = (
    ("the diagonal", lambda p: p["back"] == 0),
    ("sources ahead of the row", lambda p: p["back"] < 0),
    (r"sources (\d+) ahead(?: of the row)?", lambda p, n: p["back"] == -n),
    (r"sources ahead of the row by more than (\d+)", lambda p, n: p["back"] < -n),
    (r"sources at most (\d+) ahead of the row", lambda p, n: p["back"] >= -n),
    (r"sources (\d+) back", lambda p, n: p["back"] == n),
    (r"sources (\d+) back or more", lambda p, n: p["back"] >= n),
    (
        r"sources less than (\d+) back",
        lambda p, n: (p["back"] >= 0) & (p["back"] < n),
    ),
    ("the initial state", lambda p: p["source"] < 0),
    ("sources after the initial state", lambda p: p["source"] >= 0),
    (r"pairs across edges of chunks of (\d+)", lambda p, n: _chunks(p, n) != 0),
    (r"pairs inside chunks of (\d+)", lambda p, n: _chunks(p, n) == 0),
    (r"pairs of neighbouring chunks of (\d+)", lambda p, n: _chunks(p, n) == 1),
    (r"pairs two or more chunks of (\d+) apart", lambda p, n: _chunks(p, n) >= 2),
    (
        r"pairs across the last token of chunks of (\d+)",
        lambda p, n: (p["row"] + 1) // n != (p["source"] + 1) // n,
    ),
    (
        rf"the first {_AXIS} of every chunk of (\d+)",
        lambda p, axis, n: (p[axis] >= 0) & (p[axis] % n == 0),
    ),
    (
        rf"the last {_AXIS} of every chunk of (\d+)",
        lambda p, axis, n: (p[axis] >= 0) & (p[axis] % n == n - 1),
    ),
    (
        rf"{_AXIS}s in the tail of chunks of (\d+)",
        lambda p, axis, n: p[axis] >= p[f"end of {axis}"] // n * n,
    ),
    (
        rf"{_AXIS}s in whole chunks of (\d+)",
        lambda p, axis, n: p[axis] < p[f"end of {axis}"] // n * n,
    ),
    (
        rf"{_AXIS}s (in|before) the last chunk of (\d+)",
        lambda p, axis, side, n: (
            (p[axis] // n == (p[f"end of {axis}"] - 1) // n) == (side == "in")
        ),
    ),
    (
        rf"{_AXIS}s in (odd|even) chunks of (\d+)",
        lambda p, axis, half, n: p[axis] // n % 2 == (half == "odd"),
    ),
    (
        rf"{_AXIS}s after the first of every chunk of (\d+)",
        lambda p, axis, n: (p[axis] >= 0) & (p[axis] % n > 0),
    ),
    (
        rf"{_AXIS}s before the last of every chunk of (\d+)",
        lambda p, axis, n: (p[axis] >= 0) & (p[axis] % n < n - 1),
    ),
    (rf"{_AXIS}{_ENTRY} from (\d+) on", lambda p, axis, n: p[axis] >= n),
    (rf"{_AXIS}{_ENTRY} before (\d+)", lambda p, axis, n: p[axis] < n),
    (rf"{_AXIS}{_ENTRY} (\d+)", lambda p, axis, n: p[axis] == n),
    (
        rf"{_AXIS}{_ENTRY} (\d+(?:, \d+)+)",
        lambda p, axis, x: np.isin(p[axis], [int(n) for n in x.split(", ")]),
    ),
    (rf"the first {_AXIS}{_ENTRY}", lambda p, axis: p[axis] == 0),
    (rf"the last {_AXIS}{_ENTRY}", lambda p, axis: _left(p, axis) == 1),
    (rf"the last (\d+) {_AXIS}{_ENTRY}", lambda p, n, axis: _left(p, axis) <= n),
    (rf"the {_AXIS} (\d+) before the end", lambda p, axis, n: _left(p, axis) == n),
    (r"lengths above (\d+)", lambda p, n: p["length"] > n),
    (r"lengths (?:before|below) (\d+)", lambda p, n: p["length"] < n),
    ("sequences of one token", lambda p: p["length"] == 1),
    (r"lengths? (?:of )?(\d+)", lambda p, n: p["length"] == n),
    (r"lengths that are no multiple of (\d+)", lambda p, n: p["length"] % n > 0),
    (r"lengths that are multiples of (\d+)", lambda p, n: p["length"] % n == 0),
)


# -- factors

_QUANTITIES = re.compile(
    r"(?:sum|product) of (?:\([^)]*\)|[\w ]+?) over"
    r"(?: the [a-z' ]*?(?: in \(source, row\]| tokens of chunks in \(source, row\]|"
    r"(?=[)*/+-]| [)*/+-]|$))| \(source, row\])(?: of head 0)?"
    r"|\w+\[[^\]]*\] \. \w+\[[^\]]*\]"
    r"|\([^()]*key\^2\)(?:\[[^\]]*\])?"
    r"|chunk edges crossed"
    r"|\b(?!(?:exp|min|max|abs|log|ln|sqrt)\b)[A-Za-z_]\w*(?:\[[^\]]*\])?"
    r"(?: of (?:head 0|the last head))?"
)
_FUNCTIONS = {"exp": np.exp, "min": min, "max": max, "sqrt": np.sqrt, "ln": np.log}
CLOSE = 1e-3
# Words behind what was measured in place of the exact entry.
_PLACE = " in its place"


def same_factor(text: str, right: str) -> bool:
    """Return True if two factors are the same words, or have the same values."""
    if _fits(text, right):
        return True
    if text.endswith(_PLACE) != right.endswith(_PLACE):
        return False
    values = [_values(x.removesuffix(_PLACE)) for x in (text, right)]
    if any(x is None for x in values):
        return False
    return bool(np.allclose(*values, rtol=CLOSE, atol=0))


def _values(text: str) -> list[float] | None:
    """Return a factor for some values of its quantities; None if it is no formula."""
    formula = text.replace("ln 2", str(np.log(2)))
    known = dict.fromkeys(_QUANTITIES.findall(formula))
    names = {name: f"x[{k}]" for k, name in enumerate(known)}
    formula = _QUANTITIES.sub(lambda m: names[m[0]], formula).replace("^", "**")
    result = []
    for seed in range(12):
        x = [_value(name, seed) for name in names]
        try:
            with np.errstate(all="ignore"):
                scope = {"x": x, "__builtins__": {}, **_FUNCTIONS}
                result.append(float(eval(formula, scope)))
        except (SyntaxError, TypeError, ValueError, ZeroDivisionError, NameError):
            return None
    return result


def _value(name: str, seed: int) -> float:
    """Return a number for a quantity: about 1, or of any size."""
    rng = np.random.default_rng([seed, *map(ord, name)])
    low, high = (-0.3, 0.3) if seed < 6 else (-12, 1)
    return float(10 ** rng.uniform(low, high))
