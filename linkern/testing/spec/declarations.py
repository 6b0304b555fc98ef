"""Declarations as text: what each may say, and the sentences that refuse the rest."""

import difflib
import math
from collections.abc import Callable, Iterable
from typing import Any

from linkern.oracle import FEATURE_MAPS
from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.errors import UsageError
from linkern.testing.spec.operators import (
    INPUT_NAMES,
    INVERSE_ROOT_KEY_DIM,
    OPERATORS,
)

__all__ = ["LAYOUTS", "PARSERS", "as_text", "nearest", "pairs"]

LAYOUTS = ("bhtd", "bthd", "htd", "td")
EPS_MODES = ("denominator", "normalizer", "clamp")


def nearest(what: str, got: str, known: Iterable[str]) -> str:
    """Return the sentence that refuses an unknown name and offers the nearest one."""
    known = sorted(known)
    close = difflib.get_close_matches(got, known, n=1, cutoff=0.5)
    hint = f'did you mean "{close[0]}"?' if close else f"known: {', '.join(known)}."
    return f'unknown {what} "{got}"; {hint}'


def pairs(option: str, form: str, texts: Iterable[str] | None) -> dict[str, str]:
    """Read ``KEY=VALUE`` texts as an option takes them."""
    declared = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            msg = f'{option} must have the form {form}, got "{text}".'
            raise UsageError(msg)
        declared[key.strip()] = value.strip()
    return declared


def as_text(value: Any) -> str:
    """Return a declared value as one writes it on the command line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    return str(value).strip()


def _refuse(key: str, rule: str, text: str) -> UsageError:
    return UsageError(f'`{key}` must be {rule}, got "{text}".')


def _one_of(*allowed: str) -> Callable[[str, str], str]:
    def parse(key: str, text: str) -> str:
        if text not in allowed:
            raise _refuse(key, "one of " + ", ".join(allowed), text)
        return text

    return parse


def _boolean(key: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise _refuse(key, "true or false", text)
    return text.lower() == "true"


def _integer(least: int) -> Callable[[str, str], int]:
    def parse(key: str, text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise _refuse(key, f"an integer of at least {least}", text)
        return int(text)

    return parse


def _integers(key: str, text: str) -> tuple[int, ...]:
    return tuple(_integer(1)(key, item.strip()) for item in text.split(","))


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
    return tuple(_one_of(*known)(key, item.strip()) for item in text.split(","))


def _name(key: str, text: str) -> str:
    if not text:
        raise _refuse(key, "the name of a function", text)
    return text


_dtype = _one_of(*SIGNIFICAND_BITS)
PARSERS: dict[str, Callable[[str, str], Any]] = {
    "feature_map": _one_of(*FEATURE_MAPS),
    "key_feature_map": _one_of(*FEATURE_MAPS),
    "normalize": _boolean,
    "scale": _scale,
    "eps": _epsilon,
    "eps_mode": _one_of(*EPS_MODES),
    "layout": _one_of(*LAYOUTS),
    "accumulator_dtype": _dtype,
    "feature_dtype": _dtype,
    "operand_dtype": _dtype,
    "score_dtype": _dtype,
    "state_dtype": _dtype,
    "normalizer_dtype": _dtype,
    "chunk_size": _integer(1),
    "min_length": _integer(0),
    "max_length": _integer(0),
    "length_multiple_of": _integer(1),
    "key_dims": _integers,
    "value_dims": _integers,
    "equal_dims": _boolean,
    "equal_lengths": _boolean,
    "mutates": _input_names,
    "interface": _one_of("sequence", "step"),
    "vjp": _name,
    "gradients": _one_of("auto", "required", "none"),
    "strides": _one_of("any", "contiguous"),
    "nan_policy": _one_of("propagate", "strict", "any"),
    "rounding": _one_of("nearest", "truncation"),
    "feature_error": _one_of("absolute", "relative"),
    "output_dtype": _dtype,
    "validates": _boolean,
    "thread_safe": _boolean,
    "takes_state": _boolean,
    "decay_log_base": _one_of("e", "2"),
    "decay_form": _one_of("log", "factor"),
    "decay_floor": _log_decay,
    "state_layout": _one_of("kv", "vk"),
    "l2norm": _epsilon,
    "value_groups": _boolean,
}
