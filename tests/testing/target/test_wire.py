"""Messages cross as they are; whatever is no message is refused, and costs nothing."""

import contextlib
import io
import json
import re
import struct
import tracemalloc
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

import linkern
from linkern.testing import Plan
from linkern.testing.runner.judging import Judgement
from linkern.testing.runner.results import CheckResult, Counterexample
from linkern.testing.runner.worker import Ready, Task
from linkern.testing.spec.contract import Contract
from linkern.testing.target.framework import Library
from linkern.testing.target.inference import Inferred
from linkern.testing.target.loading import Interface
from linkern.testing.target.protocol import (
    Call,
    Raised,
    Refused,
    Reply,
    TargetConfig,
)
from linkern.testing.target.schema import codec
from linkern.testing.target.wire import (
    OWN,
    Limits,
    WireError,
    new_ticket,
    packed,
    read_message,
    read_prefix,
    write,
)
from linkern.testing.target.worker import Opened

TICKET = bytes(range(16))
SMALL = Limits(header=2**16, arrays=2**20)
HEADER = struct.Struct("<4s16sIQ")


@dataclass(frozen=True)
class Everything:
    """One field of each type that crosses."""

    count: int
    name: str
    ratio: float | None
    both: float | str | None
    array: NDArray[Any]
    maybe: NDArray[Any] | None
    pair: tuple[float, float] | None
    rows: tuple[tuple[float, ...], ...]
    places: list[int]
    names: frozenset[str]
    arrays: dict[str, NDArray[Any]]
    options: dict[str, Any]
    inner: Raised | None
    flag: bool = False
    more: tuple[NDArray[Any], ...] = field(default=())


def frame(header, body=b"", *, magic=b"LKN1", ticket=TICKET, sizes=None):
    """Return a message of these bytes, well-announced or not."""
    sizes = sizes or (len(header), len(body))
    return HEADER.pack(magic, ticket, *sizes) + header + body


def read(data, kinds=(Everything, Reply, Raised), limits=SMALL):
    stream = io.BytesIO(data)
    prefix = read_prefix(stream)
    message = read_message(stream, prefix, kinds, limits)
    return message, prefix.ticket


def same(one, other):
    """Return True for values that are equal, of one type, bit by bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        as_one = (one.dtype, one.shape) == (other.dtype, other.shape)
        return as_one and one.tobytes() == other.tobytes()
    if hasattr(one, "__dataclass_fields__"):
        names = [f.name for f in fields(one)]
        return all(same(getattr(one, n), getattr(other, n)) for n in names)
    if isinstance(one, list | tuple):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(same(x, y) for x, y in pairs)
    if isinstance(one, dict):
        return [*one] == [*other] and same([*one.values()], [*other.values()])
    return one == other or (np.isnan(one) and np.isnan(other))


def crossed(message, kinds):
    """Return a message as the other side reads it."""
    stream = io.BytesIO()
    write(stream, message, TICKET)
    got, ticket = read(stream.getvalue(), kinds, OWN)
    assert ticket == TICKET
    return got


# -- what crosses

ARRAYS = (
    st.sampled_from(["f8", "f4", "f2", "i8", "i4", "u1", "?", ">f8"])
    .flatmap(
        lambda dtype: hnp.arrays(
            np.dtype(dtype),
            hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3),
        )
    )
    .map(lambda x: x.astype(x.dtype.newbyteorder("=")))
)
NUMBERS = st.floats(allow_nan=True) | st.integers()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | ARRAYS,
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner)
    ),
    max_leaves=8,
)
EVERYTHING = st.builds(
    Everything,
    count=st.integers(),
    name=st.text(),
    ratio=st.none() | NUMBERS,
    both=st.none() | NUMBERS | st.text(),
    array=ARRAYS,
    maybe=st.none() | ARRAYS,
    pair=st.none() | st.tuples(NUMBERS, NUMBERS),
    rows=st.lists(st.lists(NUMBERS).map(tuple)).map(tuple),
    places=st.lists(st.integers()),
    names=st.frozensets(st.text()),
    arrays=st.dictionaries(st.text(), ARRAYS),
    options=st.dictionaries(st.text(), JSON),
    inner=st.none() | st.builds(Raised, st.text()),
    flag=st.booleans(),
    more=st.lists(ARRAYS).map(tuple),
)


@given(EVERYTHING)
def test_what_was_sent_is_what_is_read(message):
    assert same(crossed(message, (Everything,)), message)


X = np.arange(12, dtype=np.float32).reshape(1, 1, 4, 3)
CALL = Call(
    {"query": X, "key": X[..., :0], "value": X.astype("f2")},
    options={"form": "chunkwise", "mask": np.ones(3, bool), "sizes": (2, [3, None])},
    cuts=(1, 2),
    wants_state=True,
    cotangent=X,
    segments=((0, 4), (0, 2)),
)
REPLY = Reply(
    output=X,
    dtype="float32",
    kind="numpy.ndarray",
    shape=X.shape,
    expected_shape=X.shape,
    changed=("key",),
    states=(X, X[0]),
    gradients=(X, np.zeros(())),
    gradient_dtypes=("float32", ""),
    other_outputs=(X,),
)
EXAMPLE = Counterexample(
    "T=4",
    (CALL, CALL),
    index=[0, 0, 1, 2],
    got=float("nan"),
    ratio=float("inf"),
    errors=((0.5, float("inf")), (0.0, 1.0)),
    allowed=(0.0, 1.5),
    outputs=(X, None),
    interface=Interface(keywords=frozenset({"b", "a"}), state=("state",)),
)
RESULT = CheckResult("prefix", "a law", "failed", 3, 2.5, EXAMPLE, "so", curve=(1.0,))
MESSAGES = [
    TargetConfig("kernel.py:f", scale="K^-0.5", options={"window": 8}),
    TargetConfig("kernel.py:f", framework=None, scale=0.5),
    CALL,
    REPLY,
    Reply(None, "", "builtins.list", (), (1, 1, 4, 3)),
    Raised("ValueError: no (kernel.py:3)"),
    Refused("the target must be callable"),
    Opened(
        Interface(inputs=("q", "k", "v")),
        Library("numpy", ("float32",), styles=("strided",)),
        Inferred("numpy", "no reason", ("torch",)),
    ),
    Plan("kernel.py:f", "gla", Contract(decay_log_base="2"), options={"x": (1, 2)}),
    Task(Plan("kernel.py:f", "gla"), "prefix", {"it raises": "causality"}, 1.5),
    Ready(),
    Judgement(RESULT, hung=True, broken=("float32",), before={}, reported={"a": "b"}),
]
# Messages that the referee writes to its own processes; a plan checks its names.
OURS = (Plan, Task)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_every_message_of_the_protocol_crosses(message):
    assert same(crossed(message, (type(message),)), message)


def test_bfloat16_crosses():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    sent = Call({"value": X.astype(ml_dtypes.bfloat16)})
    assert same(crossed(sent, (Call,)), sent)


def test_a_view_crosses_as_its_numbers_and_can_be_written():
    got = crossed(Call({"value": X[..., ::2]}), (Call,)).inputs["value"]
    assert np.array_equal(got, X[..., ::2])
    got[...] = 0


def test_every_field_has_a_type_that_crosses():
    """Of a plan, a function does not: it stays in the process that has it."""
    for message in MESSAGES:
        for one in fields(message):
            value = getattr(message, one.name)
            assert codec(type(message)).encode(message, []), (one.name, value)
    with pytest.raises(WireError, match="`function`: a value of type"):
        packed(Plan("f", "gla", function=len), TICKET)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (Call({"query": [1.0]}), "`inputs`: `query`: an array expected, got list"),
        (Call({"query": X.astype(complex)}), "dtype complex64|complex128"),
        (Call({"query": np.array([{}])}), "dtype object does not cross"),
        (TargetConfig("f", options={"x": {1}}), "`x`: a number, a text, an array"),
        (TargetConfig("f", options={"x": {1: 2}}), "`x`: str expected, got int"),
        (TargetConfig("f", options={"x": print}), "got builtin_function_or_method"),
        (Call({}, cuts=3), "`cuts`: a tuple expected, got int"),
        (Raised(3), "`message`: str expected, got int"),
    ],
)
def test_nothing_else_crosses(message, words):
    with pytest.raises(WireError, match=words):
        packed(message, TICKET)


def test_an_option_that_contains_itself_is_refused():
    inner = []
    inner.append(inner)
    with pytest.raises(WireError, match="contains itself"):
        packed(TargetConfig("f", options={"x": inner}), TICKET)


def test_tickets_do_not_repeat():
    assert len({new_ticket() for _ in range(100)}) == 100


# -- what is refused

FLOAT = ["float64", [2]]
NESTED = b"[" * 100_000


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (frame(b'["Raised",["x"]]', magic=b"\x80\x04PK"), "bytes that are no message"),
        (frame(b"", sizes=(2**32 - 1, 0)), "a header of 4294967295 bytes"),
        (frame(b"{}", sizes=(2, 2**64 - 1)), "arrays of 18446744073709551615 bytes"),
        (frame(b"[]"), "not the kind of a message"),
        (frame(b"{}"), "not the kind of a message"),
        (frame("[\xe9]".encode()), r"malformed message \(UnicodeDecodeError"),
        (frame("[]".encode("utf-16")), r"malformed message \(UnicodeDecodeError"),
        (frame(b'["Raised",'), r"malformed message \(JSONDecodeError"),
        (frame(b"1" * 6000), r"malformed message \(ValueError"),
        (frame(NESTED), "a header of 100000 bytes"),
        (frame(NESTED[:60_000]), r"malformed message \(RecursionError"),
        (frame(b'["Plan",[]]'), "of another kind than Everything or Reply or Raised"),
        (frame(b'["Raised",[]]'), "the 1 fields of Raised"),
        (frame(b'["Raised",["x","y"]]'), "the 1 fields of Raised"),
        (frame(b'["Raised",[NaN]]'), "`message`: str expected, got float"),
        (frame(b'["Raised",[{"a":1,"a":2}]]'), "a name twice"),
        (frame(b'["Raised",["x"]]', b"12345678"), "8 bytes that belong to no array"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_is_no_message_is_refused(data, words):
    with pytest.raises(WireError, match=words):
        read(data)


@dataclass(frozen=True)
class One:
    x: NDArray[Any]


@pytest.mark.parametrize(
    ("described", "words"),
    [
        (["object", [1]], "an unknown dtype"),
        (["O", [1]], "an unknown dtype"),
        (["V8", [1]], "an unknown dtype"),
        (["datetime64[s]", [1]], "an unknown dtype"),
        (["float64,float64", [1]], "an unknown dtype"),
        ([["float64"], [1]], "malformed"),
        (["float64"], "malformed"),
        (7, "malformed"),
        (["float64", 1], "without a shape"),
        (["float64", [-1]], r"an array of shape \[-1\]"),
        (["float64", [-1, -1]], r"an array of shape"),
        (["float64", [True]], r"an array of shape \[True\]"),
        (["float64", [1.0]], r"an array of shape \[1.0\]"),
        (["float64", [2**62, 2**62]], "where 8 are left"),
        (["float64", [2**61]], "where 8 are left"),
        (["float64", [0, 2**70]], "malformed"),
        (["float64", [1] * 33], "without a shape"),
        (["float64", [2]], "an array of 16 bytes, where 8 are left"),
        (["float32", [1]], "4 bytes that belong to no array"),
        (["bool", [8]], "neither 0 nor 1"),
    ],
)
def test_arrays_are_of_a_known_dtype_and_size(described, words):
    header = json.dumps(["One", [described]]).encode()
    with pytest.raises(WireError, match=words):
        read(frame(header, b"12345678"), (One,))


@given(st.data())
def test_bytes_of_any_kind_are_read_or_refused(data):
    """Random, truncated, changed in a few places: nothing else is ever raised."""
    message = data.draw(st.sampled_from([m for m in MESSAGES if type(m) not in OURS]))
    raw = bytearray(b"".join(bytes(part) for part in packed(message, TICKET)))
    kinds = [type(one) for one in MESSAGES if type(one) not in OURS]
    how = data.draw(st.sampled_from(["random", "header", "truncated", "changed"]))
    if how == "random":
        raw = data.draw(st.binary(max_size=200))
    elif how == "header":
        raw = frame(data.draw(st.binary(max_size=200)))
    elif how == "truncated":
        del raw[data.draw(st.integers(0, len(raw))) :]
    else:
        for _ in range(data.draw(st.integers(1, 4))):
            # Where the header is, more often than in the middle of an array.
            place = data.draw(st.integers(0, min(len(raw), 300) - 1))
            raw[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(WireError, EOFError):
        read(bytes(raw), kinds)


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=3)
        | st.just(FLOAT),
        lambda inner: (
            st.lists(inner, max_size=15) | st.dictionaries(st.text(max_size=2), inner)
        ),
    ),
    st.sampled_from([type(one) for one in MESSAGES if type(one) not in OURS]),
)
def test_a_header_of_any_content_is_read_or_refused(content, kind):
    header = json.dumps([kind.__name__, content]).encode()
    with contextlib.suppress(WireError, EOFError):
        read(frame(header, bytes(16)), (kind,))


def test_sizes_are_bounded_before_anything_is_read():
    """A terabyte that is announced takes no memory, nor does one that is described."""
    tracemalloc.start()
    try:
        for data in (
            frame(b"", sizes=(2**31, 0)),
            frame(b'["One",[["float64",[17179869184]]]]', sizes=(35, 2**37)),
            frame(b'["One",[["float64",[17179869184]]]]'),
        ):
            with pytest.raises(WireError):
                read(data, (One,))
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_nothing_is_unpickled():
    """No module of the package imports what runs bytes that it reads."""
    runs_bytes = re.compile(r"^\s*(import|from) (pickle|marshal|shelve|dill)\b", re.M)
    package = Path(linkern.__file__).parent
    for path in package.rglob("*.py"):
        assert not runs_bytes.search(path.read_text(encoding="utf-8")), path
