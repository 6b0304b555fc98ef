"""A call in several orders of threads and under sanitizers, from file to file."""

import json
from collections.abc import Sequence
from pathlib import Path

from safetensors import SafetensorError, deserialize

from linkern.testing.emulator.calls import Call, Stored, prepared
from linkern.testing.emulator.running import run
from linkern.testing.emulator.ways import Way, several
from linkern.testing.errors import UsageError

__all__ = ["emulated"]


def emulated(
    call: Call,
    inputs: Path,
    outputs: Path,
    *,
    schedules: int = 1,
    modes: Sequence[str] = (),
    seconds: float = 60.0,
) -> list[str]:
    """Run a call on a file of tensors; write its results if there is no fault.

    Parameters
    ----------
    call : Call
        The function, and how it is called.
    inputs, outputs : Path
        Safetensors files.
    schedules : int
        Orders of threads, whose results must be the same bit by bit.
    modes : sequence of str
        Sanitizers to run it under as well: ``"thread"``, ``"address"``.
    seconds : float
        Time for each run.

    Returns
    -------
    list of str
        Faults.

    Raises
    ------
    UsageError
        If a file cannot be read, or the function not compiled or called.
    """
    ready = prepared(call, _read(inputs))
    ways = several(schedules)
    first = run(ready, ways[0], "plain", seconds)
    faults = list(first.faults)
    for way in ways[1:]:
        other = run(ready, way, "plain", seconds)
        faults += other.faults or _differences(first.tensors, other.tensors, way)
    for mode in modes:
        # Blocks that run at the same time, since it is their order that is not known.
        faults += run(ready, Way(resident=3), mode, seconds).faults
    if not faults:
        outputs.write_bytes(_serialized(first.tensors))
    return list(dict.fromkeys(faults))


def _read(path: Path) -> Stored:
    try:
        return dict(deserialize(path.read_bytes()))  # type: ignore[no-untyped-call]
    except (OSError, SafetensorError) as error:
        msg = f"`{path}` must be a safetensors file, but: {error}."
        raise UsageError(msg) from None


def _serialized(tensors: Stored) -> bytes:
    """Return a safetensors file: the length of a header, the header, the numbers."""
    header, end = {}, 0
    for name, stored in tensors.items():
        start, end = end, end + len(stored["data"])
        described = {key: stored[key] for key in ("dtype", "shape")}
        header[name] = {**described, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that the numbers are aligned
    data = b"".join(stored["data"] for stored in tensors.values())
    return len(text).to_bytes(8, "little") + text + data


def _differences(first: Stored, other: Stored, way: Way) -> list[str]:
    """Return a sentence for each tensor that another order of threads changes."""
    return [
        f"`{name}` depends on the order of threads: its bits are others in the order "
        f"`{way}` than in the order `forward`"
        for name in first
        if name in other and first[name]["data"] != other[name]["data"]
    ]
