"""Values of declarations as text: what each may be, and the sentences that refuse."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from linkern.testing.errors import UsageError
from linkern.testing.spec.operators import (
    INPUT_NAMES,
    INVERSE_ROOT_KEY_DIM,
    OPERATORS,
)

__all__ = [
    "BOOLEAN",
    "INPUTS",
    "INTEGERS",
    "NAME",
    "NEGATIVE",
    "NOT_NEGATIVE",
    "SCALE",
    "Values",
    "integer",
    "one_of",
]


class Values(NamedTuple):
    """Values of a declaration: in words, and as a function of key and text."""

    text: str
    parse: Callable[[str, str], Any]


def _refuse(key: str, rule: str, text: str) -> UsageError:
    return UsageError(f'`{key}` must be {rule}, got "{text}".')


def one_of(*allowed: str) -> Values:
    """Return the values that are these words."""

    def parse(key: str, text: str) -> str:
        if text not in allowed:
            raise _refuse(key, "one of " + ", ".join(allowed), text)
        return text

    return Values(" ".join(allowed), parse)


def integer(least: int) -> Values:
    """Return the values that are integers from `least` on."""

    def parse(key: str, text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise _refuse(key, f"an integer of at least {least}", text)
        return int(text)

    return Values(f"an integer of at least {least}", parse)


def _boolean(key: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise _refuse(key, "true or false", text)
    return text.lower() == "true"


def _integers(key: str, text: str) -> tuple[int, ...]:
    return tuple(integer(1).parse(key, item.strip()) for item in text.split(","))


def _number(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise _refuse(key, "a number", text) from None
    if not math.isfinite(value):
        raise _refuse(key, "finite", text)
    return value


def _epsilon(key: str, text: str) -> float:
    value = _number(key, text)
    if value < 0:
        raise _refuse(key, "zero or positive", text)
    return value


def _scale(key: str, text: str) -> float | str:
    if text == INVERSE_ROOT_KEY_DIM:
        return text
    value = _number(key, text)
    if value == 0:
        raise _refuse(key, f"a number other than zero, or {INVERSE_ROOT_KEY_DIM}", text)
    return value


def _log_decay(key: str, text: str) -> float:
    value = _number(key, text)
    if not value < 0:
        raise _refuse(key, "a negative number", text)
    return value


def _input_names(key: str, text: str) -> tuple[str, ...]:
    names = {name for operator in OPERATORS.values() for name in operator.names}
    known = (*INPUT_NAMES, "initial_state", *sorted(names - {*INPUT_NAMES}))
    name = one_of(*known)
    return tuple(name.parse(key, item.strip()) for item in text.split(","))


def _name(key: str, text: str) -> str:
    if not text:
        raise _refuse(key, "the name of a function", text)
    return text


BOOLEAN = Values("true false", _boolean)
INTEGERS = Values("integers, separated by commas", _integers)
NOT_NEGATIVE = Values("a number, zero or positive", _epsilon)
NEGATIVE = Values("a negative number", _log_decay)
SCALE = Values(f"a number other than zero, or {INVERSE_ROOT_KEY_DIM}", _scale)
INPUTS = Values("names of inputs, or initial_state, separated by commas", _input_names)
NAME = Values("the name of a function", _name)
