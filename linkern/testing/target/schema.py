"""Dataclasses as JSON values and arrays, by the types of their fields.

The types are a closed table: a field can hold numbers, texts, arrays, tuples, lists,
sets and mappings of them, and other dataclasses. Decoding looks up no class and calls
no function by a name that the other side wrote, and returns nothing that the type of a
field excludes.
"""

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

__all__ = ["Codec", "WireError", "codec"]

# From the dtype and shape that a header describes to an array, which is filled later.
Take = Callable[[Any], NDArray[Any]]
Arrays = list[NDArray[Any]]


class WireError(Exception):
    """A message that cannot be sent, or bytes that are no message."""


@dataclass(frozen=True)
class Codec:
    """One type as JSON and back.

    Parameters
    ----------
    encode : callable
        ``encode(value, arrays)``: the JSON value; arrays are appended to `arrays`.
    decode : callable
        ``decode(json, take)``: the value; ``take(description)`` returns an array.
    """

    encode: Callable[[Any, Arrays], Any]
    decode: Callable[[Any, Take], Any]


def codec(hint: Any) -> Codec:
    """Return the codec of a type.

    Parameters
    ----------
    hint : type
        A dataclass, or what a field of one is annotated with.

    Returns
    -------
    Codec
        For a type outside of the table, one that refuses every value.

    Examples
    --------
    >>> arrays = []
    >>> codec(tuple[int, ...]).encode((2, 3), arrays)
    [2, 3]
    >>> codec(tuple[int, ...]).decode([2, "3"], arrays.pop)
    Traceback (most recent call last):
        ...
    linkern.testing.target.schema.WireError: int expected, got str
    """
    return _codec(hint)


@cache
def _codec(hint: Any) -> Codec:
    origin, arguments = get_origin(hint), get_args(hint)
    alias = getattr(origin or hint, "__value__", None)
    if alias is not None:  # a `type` statement, such as that of `NDArray` in NumPy 2.5
        return codec(alias[arguments] if arguments else alias)
    if hint is Any:
        return Codec(_encode_any, _decode_any)
    if hint in _SCALARS:
        return _scalar(hint)
    if origin in (Union, types.UnionType):
        return _union([codec(x) for x in arguments if x is not types.NoneType])
    if origin is Literal:
        return codec(type(arguments[0]))
    if origin is np.ndarray:
        return Codec(_encode_array, lambda described, take: take(described))
    if origin is tuple and arguments[1:] != (Ellipsis,):
        return _fixed([codec(x) for x in arguments])
    if origin in (tuple, list, frozenset):
        return _several(origin, codec(arguments[0]))
    if origin in (Mapping, dict) and arguments[0] is str:
        return _mapping(codec(arguments[1]))
    if is_dataclass(hint):
        return _record(hint)
    return _refusing(hint)


def _refuse(expected: str, got: Any) -> NoReturn:
    msg = f"{expected} expected, got {type(got).__name__}"
    raise WireError(msg)


def _scalar(kind: type) -> Codec:
    accepted = (int, float) if kind is float else (kind,)

    def encode(value: Any, _arrays: Arrays) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        if type(value) not in accepted:
            _refuse(kind.__name__, value)
        return value

    def decode(value: Any, _take: Take) -> Any:
        if type(value) not in accepted:
            _refuse(kind.__name__, value)
        return value

    return Codec(encode, decode)


_SCALARS = (str, int, float, bool)


def _union(members: list[Codec]) -> Codec:
    """Return the codec of alternatives; None is always one."""

    def first(name: str, value: Any, rest: Any) -> Any:
        if value is None:
            return None
        for member in members[:-1]:
            try:
                return getattr(member, name)(value, rest)
            except WireError:
                continue
        return getattr(members[-1], name)(value, rest)

    return Codec(
        lambda value, arrays: first("encode", value, arrays),
        lambda value, take: first("decode", value, take),
    )


def _fixed(members: list[Codec]) -> Codec:
    """Return the codec of a tuple of so many entries."""

    def encode(value: Any, arrays: Arrays) -> Any:
        pairs = zip(members, value, strict=True)
        return [member.encode(x, arrays) for member, x in pairs]

    def decode(value: Any, take: Take) -> Any:
        if type(value) is not list or len(value) != len(members):
            _refuse(f"a list of {len(members)}", value)
        pairs = zip(members, value, strict=True)
        return tuple(member.decode(x, take) for member, x in pairs)

    return Codec(encode, decode)


def _several(kind: type, member: Codec) -> Codec:
    def encode(value: Any, arrays: Arrays) -> Any:
        if not isinstance(value, tuple | list | frozenset):
            _refuse(f"a {kind.__name__}", value)
        values = sorted(value) if kind is frozenset else value
        return [member.encode(x, arrays) for x in values]

    def decode(value: Any, take: Take) -> Any:
        if type(value) is not list:
            _refuse("a list", value)
        return kind(member.decode(x, take) for x in value)

    return Codec(encode, decode)


def _mapping(member: Codec) -> Codec:
    def encode(value: Any, arrays: Arrays) -> Any:
        return {
            _text(name): _named(name, member.encode, x, arrays)
            for name, x in value.items()
        }

    def decode(value: Any, take: Take) -> Any:
        if type(value) is not dict:
            _refuse("a mapping", value)
        return {name: member.decode(x, take) for name, x in value.items()}

    return Codec(encode, decode)


def _record(kind: Any) -> Codec:
    """Return the codec of a dataclass: the list of its fields, in their order."""
    hints = get_type_hints(kind)
    members = [(f.name, codec(hints[f.name])) for f in fields(kind)]

    def encode(value: Any, arrays: Arrays) -> Any:
        if type(value) is not kind:
            _refuse(kind.__name__, value)
        return [
            _named(name, member.encode, getattr(value, name), arrays)
            for name, member in members
        ]

    def decode(value: Any, take: Take) -> Any:
        if type(value) is not list or len(value) != len(members):
            _refuse(f"the {len(members)} fields of {kind.__name__}", value)
        return kind(
            *(
                _named(name, member.decode, x, take)
                for (name, member), x in zip(members, value, strict=True)
            )
        )

    return Codec(encode, decode)


def _named(name: Any, function: Callable[[Any, Any], Any], x: Any, rest: Any) -> Any:
    """Convert one entry; name it in the error."""
    try:
        return function(x, rest)
    except WireError as error:
        msg = f"`{name}`: {error}"
        raise WireError(msg) from None


def _refusing(hint: Any) -> Codec:
    def refuse(_value: Any, _rest: Any) -> Any:
        msg = f"a value of type {hint} does not cross between processes"
        raise WireError(msg)

    return Codec(refuse, refuse)


def _text(value: Any) -> str:
    if type(value) is not str:
        _refuse("str", value)
    return value


def _encode_array(x: Any, arrays: Arrays) -> Any:
    if not isinstance(x, np.ndarray):
        _refuse("an array", x)
    arrays.append(x)
    return [x.dtype.name, list(x.shape)]


# A value of any type is itself, if JSON has it, or a list: its kind and its content.


def _encode_any(value: Any, arrays: Arrays) -> Any:
    if value is None or type(value) in _SCALARS:
        return value
    if isinstance(value, np.ndarray):
        return ["array", _encode_array(value, arrays)]
    if type(value) in (list, tuple):
        return [type(value).__name__, [_encode_any(x, arrays) for x in value]]
    if type(value) is dict:
        return ["dict", _mapping(codec(Any)).encode(value, arrays)]
    _refuse("a number, a text, an array, or a list or dict of them", value)


def _decode_any(value: Any, take: Take) -> Any:
    if type(value) is not list:
        if isinstance(value, dict):
            _refuse("a kind and its content", value)
        return value
    kind, content = value if len(value) == 2 else (None, None)
    if kind == "array":
        return take(content)
    if kind in ("list", "tuple") and type(content) is list:
        items = [_decode_any(x, take) for x in content]
        return items if kind == "list" else tuple(items)
    if kind == "dict":
        return _mapping(codec(Any)).decode(content, take)
    _refuse("a kind and its content", value)
