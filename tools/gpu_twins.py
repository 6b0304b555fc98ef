"""Compare every wrapper of `device.cuh` on a GPU with what it has to do.

    python tools/gpu_twins.py

The emulator of the tests has a twin of each wrapper, and a misreading of the manual
could be in both. What is due is therefore worked out here once more, with NumPy and
from the layouts that the manual of PTX gives, without the emulator. The tests hold
the emulator against it, this program the GPU.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from linkern._cuda.layouts import record

PROBES = Path(__file__).with_name("gpu_probes.cu")
LANES = 32
KINDS = {"bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16)}


@dataclass(frozen=True)
class Probe:
    """One kernel of `gpu_probes.cu`, what it is given, and what it has to give.

    Parameters
    ----------
    kernel : str
        Its name with the arguments of its template.
    given : array of uint32
        What goes in.
    due : array
        What has to come out: uint32, or float32 where NaN is any NaN.
    blocks, shared : int
        How many, and bytes of shared memory of each.
    """

    kernel: str
    given: Any
    due: Any
    blocks: int = 1
    shared: int = 0

    def wrong(self, found: Any) -> str:
        """Return in what an output of words differs; empty if in nothing."""
        found = found.view(self.due.dtype).reshape(self.due.shape)
        same = found == self.due
        if self.due.dtype == np.float32:
            same |= np.isnan(found) & np.isnan(self.due)
        if same.all():
            return ""
        first = tuple(int(i) for i in np.argwhere(~same)[0])
        count = f"{(~same).sum()} of {same.size}"
        return f"{count} differ, first at {first}: {found[first]} for {self.due[first]}"


def text() -> str:
    """Return the probes with what they include, as one string."""
    included = (files("linkern._cuda") / "device.cuh").read_text(encoding="utf-8")
    probes = PROBES.read_text(encoding="utf-8")
    return probes.replace('#include "device.cuh"', included.replace("#pragma once", ""))


def parameters(given: int, found: int) -> Any:
    """Return the struct ``Words`` of two addresses."""
    return record(**{"in": given, "out": found})


def probes() -> Iterator[Probe]:
    """Yield a probe for each wrapper and each kind of numbers."""
    for name, kind in KINDS.items():
        yield _widens(name, kind)
        yield _narrows(name, kind)
        yield _multiplies(name, kind)
    yield _copies()
    yield from (_spreads(transposed) for transposed in (False, True))


def _widens(name: str, kind: np.dtype[Any]) -> Probe:
    """Take all numbers that there are."""
    bits = np.arange(2**16, dtype=np.uint16)
    with np.errstate(invalid="ignore"):  # among them, signalling NaN
        due = bits.view(kind).astype(np.float32)
    words = bits.view(np.uint32)
    return Probe(f"widens<{name}>", words, due, blocks=len(words) // LANES)


def _narrows(name: str, kind: np.dtype[Any]) -> Probe:
    """Take numbers halfway between others, too small, too large, and any."""
    bits = np.arange(2**16, dtype=np.uint16)
    with np.errstate(invalid="ignore"):
        exact = bits.view(kind).astype(np.float64)
    exact = np.sort(exact[np.isfinite(exact)])
    halfway = (exact[1:] + exact[:-1]) / 2
    rng = np.random.default_rng(0)
    numbers = [*exact, *halfway, *np.nextafter(np.float32(halfway), np.float32(np.inf))]
    numbers += [*(rng.standard_normal(1000) * 10.0 ** rng.uniform(-9, 9, 1000))]
    numbers += [0.0, -0.0, np.inf, -np.inf, 65519.99, 65520.0, -3e38, 1e-45]
    with np.errstate(over="ignore"):
        given = np.float32(numbers)
        given = np.resize(given, -(-len(given) // (2 * LANES)) * 2 * LANES)
        due = given.astype(kind).view(np.uint32)
    return Probe(f"narrows<{name}>", given.view(np.uint32), due, len(due) // LANES)


def _copies() -> Probe:
    given = np.random.default_rng(0).integers(1, 2**32, (2 * LANES, 4), np.uint32)
    due = given.copy()
    due[::3] = 0
    return Probe("copies", given, due, shared=due.nbytes)


def _spreads(transposed: bool) -> Probe:
    """Give lane ``4 row + pair`` two neighbours of a row of each of four matrices."""
    matrices = np.random.default_rng(0).integers(0, 2**16, (4, 8, 8), np.uint16)
    seen = matrices.swapaxes(1, 2) if transposed else matrices
    pairs = np.ascontiguousarray(seen).view(np.uint32)  # (matrix, row, pair)
    due = np.ascontiguousarray(pairs.reshape(4, LANES).T)
    name = f"spreads<{'true' if transposed else 'false'}>"
    return Probe(name, matrices.view(np.uint32), due, shared=matrices.nbytes)


def fragments(a: Any, b: Any, sums: Any, kind: Any) -> Any:
    """Return ten words for each lane: of a (16, 16), b (16, 8) and sums (16, 8).

    Lane ``4 group + pair`` has rows `group` and ``group + 8``, and columns ``2 pair``
    and the next of each half; of b it has these as rows, and `group` as its column.
    """
    words = np.zeros((LANES, 10), np.uint32)
    for lane in range(LANES):
        group, first = lane // 4, 2 * (lane % 4)
        rows, columns = (group, group + 8), (first, first + 8)
        of_a = [a[row, column : column + 2] for column in columns for row in rows]
        of_b = [b[row : row + 2, group] for row in columns]
        words[lane, :6] = np.concatenate(of_a + of_b).astype(kind).view(np.uint32)
        words[lane, 6:] = sums_of(sums, lane).view(np.uint32)
    return words


def sums_of(sums: Any, lane: int) -> Any:
    """Return the four entries of a (16, 8) sum that a lane has."""
    group, first = lane // 4, 2 * (lane % 4)
    pair = slice(first, first + 2)
    return np.concatenate([sums[group, pair], sums[group + 8, pair]]).astype(np.float32)


def _multiplies(name: str, kind: np.dtype[Any]) -> Probe:
    """Take small integers: all sums are exact, however they are rounded."""
    rng = np.random.default_rng(0)
    a, b, sums = (rng.integers(-9, 10, s) for s in ((16, 16), (16, 8), (16, 8)))
    exact = sums + a @ b
    due = np.stack([sums_of(exact, lane) for lane in range(LANES)])
    return Probe(f"multiplies<{name}>", fragments(a, b, sums, kind), due)


def cut_off() -> Probe:
    """Return a sum of 1 and three quarters of its last place: 1 if it is cut off."""
    a, b = np.zeros((16, 16)), np.zeros((16, 8))
    a[:, 0], b[0] = 1.5 * 2.0**-12, 2.0**-12
    words = fragments(a, b, np.ones((16, 8)), np.float16)
    return Probe("multiplies<f16>", words, np.ones((LANES, 4), np.float32))


def on_cupy(probe: Probe) -> Any:
    """Run a probe on the current device of CuPy; return words."""
    import cupy  # noqa: PLC0415

    module = cupy.RawModule(
        code=text(), options=("-std=c++17",), name_expressions=(probe.kernel,)
    )
    given = cupy.asarray(probe.given)
    found = cupy.full(probe.due.size, 0xFFFFFFFF, np.uint32)
    words = parameters(given.data.ptr, found.data.ptr)
    module.get_function(probe.kernel)(
        (probe.blocks,), (LANES,), (words,), shared_mem=probe.shared
    )
    return cupy.asnumpy(found)


def main() -> int:
    """Run all probes; return 1 if one is wrong."""
    good = True
    for probe in probes():
        wrong = probe.wrong(on_cupy(probe))
        good = good and not wrong
        sys.stdout.write(f"{probe.kernel}: {wrong or 'as it has to be'}\n")
    probe = cut_off()
    how = "rounded to nearest" if probe.wrong(on_cupy(probe)) else "cut off"
    sys.stdout.write(f"sums of tensor cores are {how}\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
