"""Programs for the tests of commands; they read and write their files by hand.

    python commands.py NAME INPUTS OUTPUTS

The first word says what to do. Nothing here knows the library that the referee uses.
"""

import json
import struct
import sys
from pathlib import Path


def read(path):
    """Return the metadata, and for each tensor its dtype, shape and bytes."""
    raw = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    metadata = header.pop("__metadata__")
    tensors = {
        name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }
    return metadata, tensors


def write(path, tensors):
    header, data = {}, b""
    for name, (dtype, shape, numbers) in tensors.items():
        offsets = [len(data), len(data) + len(numbers)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        data += numbers
    text = json.dumps(header).encode()
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def copies(given, layout):
    return {"output": given["value"]}


def copies_the_query(given, layout):
    return {"output": given["query"]}


def remembers(given, layout):
    """Return the values of the span before, and hand on those of this one."""
    before = given.get("initial_memory", given["value"])
    state = {"memory": given["value"], "normalizer": given["query"]}
    assert ("initial_memory" in given) == ("initial_normalizer" in given)
    return {"output": before, **state}


def hands_over_a_memory(given, layout):
    """Copy, with a state of the shape that is due, in dtypes of its own."""
    sizes = dict(zip(layout, given["key"][1], strict=True))
    lead = [size for axis, size in sizes.items() if axis in "bh"]
    memory_shape = [*lead, sizes["d"], given["value"][1][-1]]
    entries = 1
    for size in memory_shape:
        entries *= size
    memory = ("F32", memory_shape, struct.pack("<f", 3.0) * entries)
    entries //= memory_shape[-1]
    normalizer = ("BF16", memory_shape[:-1], b"\x80\x3f" * entries)
    return {"output": given["value"], "memory": memory, "normalizer": normalizer}


def differentiates(given, layout):
    return {
        "output": given["value"],
        "query_gradient": given["query"],
        "key_gradient": given["key"],
        "value_gradient": given["output_cotangent"],
    }


def names_an_unknown_dtype(given, layout):
    _, shape, numbers = given["value"]
    bytes_each = len(numbers) // (shape[0] * shape[1] * shape[2] * shape[3])
    return {"output": ("F8_E4M3", [*shape[:3], shape[3] * bytes_each], numbers)}


def returns_integers(given, layout):
    _, shape, numbers = given["value"]
    return {"output": ("I32", shape, numbers)}


def main(name, inputs, outputs):
    metadata, given = read(inputs)
    if name == "shows_metadata":
        sys.exit(json.dumps(metadata, sort_keys=True))
    write(outputs, globals()[name](given, metadata["layout"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
