"""Messages between processes: a short JSON header and raw arrays, nothing else.

One message is a prefix of fixed size, a header and the bytes of its arrays. The prefix
has the ticket of a request and the sizes of all that follows, so a reply that was not
asked for or is too large is refused before anything of it is read. The header is what
`schema` makes of a dataclass; no byte that is read is ever run.
"""

import json
import secrets
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from linkern.testing.errors import UsageError
from linkern.testing.target.frameworks import numpy_dtype
from linkern.testing.target.schema import WireError, codec

__all__ = [
    "OWN",
    "Limits",
    "Prefix",
    "WireError",
    "new_ticket",
    "read_message",
    "read_prefix",
    "write",
]

# What marks the beginning of a message, ticket, bytes of the header and of the arrays.
_PREFIX = struct.Struct("<4s16sIQ")
_MAGIC = b"LKN1"
_DTYPES = frozenset(
    (
        "bool",
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
        *("float16", "float32", "float64", "bfloat16"),
    )
)
# What a header raises that no encoder wrote; a dtype may need a library, too.
_MALFORMED = (ValueError, TypeError, RecursionError, MemoryError, UsageError)
# Axes of an array: as many as every supported NumPy has.
_MOST_AXES = 32


@dataclass(frozen=True)
class Limits:
    """The most bytes of one message.

    Parameters
    ----------
    header, arrays : int
        Of the JSON, and of all arrays together.
    """

    header: int
    arrays: int


@dataclass(frozen=True)
class Prefix:
    """The part of a message that is read first.

    Parameters
    ----------
    ticket : bytes
        Random bytes of the request that a reply answers.
    header, arrays : int
        Sizes of the rest in bytes.
    """

    ticket: bytes
    header: int
    arrays: int


# Of messages that were written by a process of the referee itself.
OWN = Limits(header=2**28, arrays=2**40)


def new_ticket() -> bytes:
    """Return 16 random bytes that nobody can guess."""
    return secrets.token_bytes(16)


def write(stream: BinaryIO, message: Any, ticket: bytes) -> None:
    """Write one message.

    Parameters
    ----------
    stream : binary file
        Where to.
    message : dataclass
        What to write.
    ticket : bytes
        A new one for a request; that of the request for a reply.

    Raises
    ------
    WireError
        If a field holds what its type excludes; nothing is written.
    """
    for part in packed(message, ticket):
        stream.write(part)
    stream.flush()


def packed(message: Any, ticket: bytes) -> list[Any]:
    """Return the bytes of one message, in parts.

    Raises
    ------
    WireError
        If a field holds what its type excludes.

    Examples
    --------
    >>> import io
    >>> @dataclass(frozen=True)
    ... class Sum:
    ...     x: NDArray[Any]
    ...     name: str = "sum"
    >>> data = b"".join(packed(Sum(np.ones(2)), bytes(16)))
    >>> data[32:-16]
    b'["Sum",[["float64",[2]],"sum"]]'
    >>> stream = io.BytesIO(data)
    >>> read_message(stream, read_prefix(stream), [Sum], OWN)
    Sum(x=array([1., 1.]), name='sum')
    """
    kind, arrays = type(message), list[NDArray[Any]]()
    try:
        content = [kind.__name__, codec(kind).encode(message, arrays)]
        header = json.dumps(content, separators=(",", ":")).encode("ascii")
    except RecursionError:
        msg = "it is nested too deeply, or contains itself"
        raise WireError(msg) from None
    body = [_bytes_of(x) for x in arrays]
    sizes = len(header), sum(part.nbytes for part in body)
    return [_PREFIX.pack(_MAGIC, ticket, *sizes) + header, *body]


def _bytes_of(x: NDArray[Any]) -> memoryview:
    if x.dtype.name not in _DTYPES:
        msg = f"an array of dtype {x.dtype} does not cross between processes"
        raise WireError(msg)
    native = np.ascontiguousarray(x, x.dtype.newbyteorder("="))
    return native.reshape(-1).view(np.uint8).data


def read_prefix(stream: BinaryIO) -> Prefix:
    """Read the prefix of a message.

    Raises
    ------
    EOFError
        If the stream ends.
    WireError
        If other bytes are there.
    """
    data = stream.read(_PREFIX.size)
    if len(data) < _PREFIX.size:
        raise EOFError
    magic, ticket, header, arrays = _PREFIX.unpack(data)
    if magic != _MAGIC:
        msg = f"bytes that are no message ({data[:16]!r})"
        raise WireError(msg)
    return Prefix(ticket, header, arrays)


def read_message(
    stream: BinaryIO, prefix: Prefix, kinds: Iterable[type], limits: Limits
) -> Any:
    """Read the rest of a message.

    Parameters
    ----------
    stream : binary file
        Where from.
    prefix : Prefix
        Its beginning.
    kinds : iterable of type
        The dataclasses that it can be.
    limits : Limits
        Its greatest size.

    Raises
    ------
    EOFError
        If the stream ends.
    WireError
        If it is too large or malformed, or another kind of message.
    """
    for name in ("header", "arrays"):
        size, most = getattr(prefix, name), getattr(limits, name)
        if size > most:
            what = "a header" if name == "header" else "arrays"
            msg = f"{what} of {size} bytes, where there can be {most}"
            raise WireError(msg)
    header = stream.read(prefix.header)
    if len(header) < prefix.header:
        raise EOFError
    body = _Body(prefix.arrays)
    try:
        message = _decoded(header, {kind.__name__: kind for kind in kinds}, body)
    except _MALFORMED as error:
        msg = f"a malformed message ({type(error).__name__})"
        raise WireError(msg) from None
    if body.left:
        msg = f"{body.left} bytes that belong to no array"
        raise WireError(msg)
    for x in body.arrays:
        _fill(x, stream)
    return message


def _decoded(header: bytes, kinds: dict[str, type], body: "_Body") -> Any:
    content = json.loads(header.decode("ascii"), object_pairs_hook=_unique)
    if type(content) is not list or len(content) != 2 or type(content[0]) is not str:
        msg = "a header that is not the kind of a message and its fields"
        raise WireError(msg)
    name, values = content
    if name not in kinds:
        msg = f"a message of another kind than {' or '.join(kinds)}"
        raise WireError(msg)
    return codec(kinds[name]).decode(values, body.take)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dict; refuse one that says a name twice."""
    content = dict(pairs)
    if len(content) < len(pairs):
        msg = "a name twice"
        raise WireError(msg)
    return content


class _Body:
    """Arrays that a header describes, within the bytes that the prefix announced."""

    def __init__(self, size: int) -> None:
        self.left = size
        self.arrays: list[NDArray[Any]] = []

    def take(self, described: Any) -> NDArray[Any]:
        """Return an array of a dtype and shape, to be filled."""
        name, shape = described
        if name not in _DTYPES or type(shape) is not list or len(shape) > _MOST_AXES:
            msg = "an array of an unknown dtype, or without a shape"
            raise WireError(msg)
        if not all(type(size) is int and size >= 0 for size in shape):
            msg = f"an array of shape {shape}"
            raise WireError(msg)
        dtype = numpy_dtype(name)
        size = dtype.itemsize
        for length in shape:
            size *= length
        if size > self.left:
            msg = f"an array of {size} bytes, where {self.left} are left"
            raise WireError(msg)
        self.left -= size
        self.arrays.append(np.empty(shape, dtype))
        return self.arrays[-1]


def _fill(x: NDArray[Any], stream: BinaryIO) -> None:
    """Read the bytes of an array into it."""
    view = x.reshape(-1).view(np.uint8).data
    filled = 0
    while filled < len(view):
        count = stream.readinto(view[filled:])  # type: ignore[attr-defined]
        if not count:
            raise EOFError
        filled += count
    if x.dtype == np.bool_ and x.size and x.view(np.uint8).max() > 1:
        msg = "a truth value that is neither 0 nor 1"
        raise WireError(msg)
