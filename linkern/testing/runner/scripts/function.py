"""HEADING"""

import contextlib
import importlib
import importlib.util
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

# <constants>
PLACE, ATTRIBUTE = "", ""
CALLS: list[dict[str, Any]] = []
NAMES: tuple[str, ...] = ()
TIMES: dict[str, int] = {}
INPUTS: tuple[str, ...] = ()
STATE: tuple[str, ...] = ()
NEEDS_STATE = False
FINAL_STATE: str | None = None
PACKED: str | None = None
OFFSETS = "int64"
POSITION: str | None = None
GATES: tuple[str, ...] = ()
OUTPUT: str | None = None
OUTPUT_STATE: str | None = None
TIME, STEPS = 0, False
WRONG: tuple[tuple[int, ...], float, float] | None = None
IN_OUTPUTS = True
AGAIN = ""


def native(x: Any) -> Any:
    """Return an array of the target's library."""
    return x


# </constants>


def load() -> Any:
    """Import the target; the path of a file is relative to this script."""
    path = Path(__file__).resolve().parent / PLACE
    sys.path.insert(0, str(path.parent) if PLACE.endswith(".py") else "")
    if PLACE.endswith(".py"):
        spec: Any = importlib.util.spec_from_file_location("target", path)
        target = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(target)
    else:
        target = importlib.import_module(PLACE)
    for name in ATTRIBUTE.split("."):
        target = getattr(target, name)
    return target


def placed(arrays: Any, name: str, call: dict[str, Any]) -> Any:
    """Return an input in its recorded memory layout."""
    x = arrays[name]
    if name in call["views"]:
        shape, offset, strides = call["views"][name]
        x = np.ndarray(shape, x.dtype, x, offset, strides)
    return native(x)


def cut(name: str, x: Any, span: Any, length: int) -> Any:
    """Return the part of an input in a span of tokens."""
    if x is None or name not in TIMES:
        return x
    each = x.shape[TIMES[name]] // max(length, 1)
    if each > 1:  # so many keys for each query
        first, last = (
            (span.start, span.stop) if isinstance(span, slice) else (span, span + 1)
        )
        span = slice(first * each, last * each)
    return x[(*(slice(None),) * TIMES[name], span)]


def called(
    target: Any, inputs: list[Any], call: dict[str, Any], others: dict[str, Any]
) -> Any:
    """Call the target span by span; return its outputs in one NumPy array."""
    named = dict(zip(NAMES, inputs, strict=True))
    length = min(named[n].shape[t] for n, t in TIMES.items() if named[n] is not None)
    spans = [slice(*span) for span in pairwise((0, *call["cuts"], length))]
    state: Any = None
    outputs = []
    selected: Any = range(length) if STEPS else spans
    for i, span in enumerate(selected):
        options = {**call["options"], **others}
        if FINAL_STATE and call["cuts"]:
            options[FINAL_STATE] = True
        if i or STEPS or NEEDS_STATE:
            several = len(STATE) > 1 and state is not None
            states = state if several else [state] * len(STATE)
            options |= dict(zip(STATE, states, strict=True))
        first = span if STEPS else span.start
        if POSITION and first:
            options[POSITION] = first
        if PACKED and call["segments"]:
            options[PACKED] = native(np.asarray(call["segments"][i], OFFSETS))
        whole = len(spans) == 1 and not STEPS
        parts = inputs if whole else [cut(n, x, span, length) for n, x in named.items()]
        buffers = written(dict(zip(NAMES, parts, strict=True))["value"], call)
        options |= buffers
        if INPUTS:
            named_inputs = zip(INPUTS, parts, strict=True)
            returned = target(
                **{n: x for n, x in named_inputs if x is not None}, **options
            )
        else:
            returned = target(*parts, **options)
        if returned is None and buffers:
            returned = tuple(buffers.values())
        if isinstance(returned, tuple | list):
            returned, *rest = returned
            state = rest[0] if len(rest) == 1 else tuple(rest)
        outputs.append(as_numpy(returned))
    if STEPS:
        return np.stack(outputs, axis=TIME)
    return outputs[0] if len(outputs) == 1 else np.concatenate(outputs, axis=TIME)


def written(value: Any, call: dict[str, Any]) -> dict[str, Any]:
    """Return arrays for the target to write: an output like the values, a state."""
    shapes = {OUTPUT: as_numpy(value).shape, OUTPUT_STATE: call["state_shape"]}
    dtype = call["dtype"]
    return {
        name: native(np.full(shape, np.nan, dtype))
        for name, shape in shapes.items()
        if name is not None
    }


def as_numpy(x: Any) -> Any:
    """Return any array as a NumPy array, in float64."""
    for method in ("detach", "cpu", "double", "get"):
        with contextlib.suppress(AttributeError):
            x = getattr(x, method)()
    return np.asarray(x, dtype=np.float64)


def is_broken(outputs: list[Any], arrays: Any) -> bool:
    """Return True if the last output is wrong, or all outputs are as recorded."""
    if WRONG is not None:
        index, low, high = WRONG
        got = outputs[-1][index]
        print(f"output{list(index)} = {got!r}; a correct kernel: {low!r} to {high!r}")
        return not low <= got <= high
    recorded = [name for name in arrays if name.startswith("output_")]
    same = all(
        np.array_equal(outputs[int(name[7:])], arrays[name], equal_nan=True)
        for name in recorded
    )
    print(f"the outputs are {'' if same else 'not '}those that broke the law")
    return same


def main() -> int:
    """Make the calls again; 1 if the law is still broken, 0 if not, 3 if unknown.

    2 if there is no target to call.
    """
    try:
        target = load()
    except Exception as error:
        print(f"the kernel cannot be loaded: {type(error).__name__}: {error}")
        return 2
    arrays = np.load(Path(__file__).with_suffix(".npz"))
    outputs = []
    for i, call in enumerate(CALLS):
        names = [f"{name}_{i}" for name in NAMES]
        inputs = [placed(arrays, n, call) if n in arrays else None for n in names]
        others = {name: native(arrays[f"{name}_{i}"]) for name in GATES}
        try:
            outputs.append(called(target, inputs, call, others))
        except Exception as error:
            print(f"call {i} raised {type(error).__name__}: {error}")
            return 1
        shown = f"output of shape {outputs[-1].shape}"
        print(f"call {i}: {shown}, cut at {call['cuts']}" if call["cuts"] else shown)
    if not IN_OUTPUTS:
        print(f"outputs do not show this law; judge again: {AGAIN}")
        return 3
    broken = is_broken(outputs, arrays)
    print("the law is still broken" if broken else "the law is not broken any more")
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
