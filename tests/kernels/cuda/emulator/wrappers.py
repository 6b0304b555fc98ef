"""Tests of the wrappers of device.cuh: the PTX manual transcribed to NumPy.

Written from the manual and not from emulator.hpp. Both are tested: the emulated
wrappers in every run, the PTX wrappers if there is a GPU.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from linkern.kernels.cuda.launch import Device, Launch
from linkern.kernels.cuda.layouts import record

__all__ = ["LAWS", "Bench", "truncates"]

WRAPPERS = str(Path(__file__).parent / "kernels" / "wrappers")
DTYPES = {"bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16)}
LANES = np.arange(32)


class Bench(NamedTuple):
    """A device, and functions that copy arrays to and from it."""

    device: Device
    to: Callable[[Any], Any] = np.asarray
    back: Callable[[Any], Any] = np.asarray

    def run(self, kernel: str, given: Any, numbers: Any) -> tuple[Any, Any]:
        """Return the words and the numbers that a kernel of wrappers.cu writes."""
        arrays = {
            "given": self.to(np.ascontiguousarray(given, np.uint32)),
            "numbers": self.to(np.ascontiguousarray(numbers, np.float32)),
            "found": self.device.empty((max(128, given.size),), np.uint32),
            "sums": self.device.empty((max(128, 2 * given.size),), np.float32),
        }
        parameters = record(**{n: self.device.address(x) for n, x in arrays.items()})
        blocks = max(1, given.size // 32) if kernel.startswith("halves") else 1
        self.device.launch(Launch(WRAPPERS, kernel, blocks, 32, 1024, parameters))
        return self.back(arrays["found"]), self.back(arrays["sums"])


def law_halves(bench: Bench, name: str) -> None:
    """Every 16-bit number is widened, and numbers are rounded to nearest."""
    halves = np.arange(1 << 16, dtype=np.uint16)
    rng = np.random.default_rng(0)
    exact = halves.view(DTYPES[name]).astype(np.float32)
    with np.errstate(all="ignore"):
        # 16-bit numbers, the ties between two of them, and numbers of all sizes.
        ties = (exact[:-1] + exact[1:]) / 2
        wide = rng.integers(0, 1 << 32, 1 << 16, dtype=np.uint32).view(np.float32)
        numbers = np.concatenate([exact, ties, wide[1:]])
        # Pairs are complete and differ, so that swapped halves are noticed.
        numbers = np.concatenate([numbers, wide[: -len(numbers) % 64]])
        due = numbers.astype(DTYPES[name])
    given = np.resize(halves, numbers.size).view(np.uint32)
    found, sums = bench.run(f"halves<{name}>", given, numbers)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(sums, np.resize(exact, sums.size))
    got = found.view(DTYPES[name])
    same = (got.view(np.uint16) == due.view(np.uint16)) | (
        np.isnan(got.astype(np.float32)) & np.isnan(numbers)
    )
    assert same.all(), numbers[~same][:5]


def law_matrices(bench: Bench, *, transposed: bool) -> None:
    """Lane 4 g + t gets entries 2 t and 2 t + 1 of row or column g of each matrix."""
    numbers = np.random.default_rng(0).permutation(256).astype(np.uint16)
    of_matrix = numbers.reshape(4, 8, 8)
    flag = "true" if transposed else "false"
    found, _ = bench.run(f"matrices<{flag}>", numbers.view(np.uint32), np.zeros(1))
    got = found[:128].view(np.uint16).reshape(32, 4, 2)
    row, column = LANES // 4, 2 * (LANES % 4)
    seen = of_matrix.swapaxes(1, 2) if transposed else of_matrix
    due = np.stack([seen[:, row, column], seen[:, row, column + 1]], axis=-1)
    np.testing.assert_array_equal(got, due.swapaxes(0, 1))


def law_product(bench: Bench, name: str) -> None:
    """A 16 x 16 matrix by a 16 x 8 one is added to a sum of 16 x 8."""
    rng = np.random.default_rng(1)
    # Small integers: products and sums are exact in any order.
    a, b = rng.integers(-8, 9, (16, 16)), rng.integers(-8, 9, (16, 8))
    sums = rng.integers(-999, 999, (16, 8)).astype(np.float32)
    group, pair = LANES // 4, 2 * (LANES % 4)

    def bits(x: Any) -> Any:
        return x.astype(DTYPES[name]).view(np.uint16)

    def two(x: Any, *place: Any) -> Any:
        return bits(x)[place]

    words = []
    for r in range(4):
        row, column = group + 8 * (r % 2), pair + 8 * (r // 2)
        words.append([two(a, row, column), two(a, row, column + 1)])
    for r in range(2):
        row = pair + 8 * r
        words.append([two(b, row, group), two(b, row + 1, group)])
    given = np.moveaxis(np.asarray(words, np.uint16), -1, 0).copy()
    row = np.stack([group, group, group + 8, group + 8], axis=-1)
    column = np.stack([pair, pair + 1, pair, pair + 1], axis=-1)
    _, found = bench.run(f"product<{name}>", given.view(np.uint32), sums[row, column])
    due = sums + a @ b
    np.testing.assert_array_equal(found[:128].reshape(32, 4), due[row, column])


def law_copies(bench: Bench) -> None:
    """16 bytes are copied; an invalid source gives zeros and is not read."""
    given = np.random.default_rng(2).integers(1, 1 << 32, 128, dtype=np.uint32)
    found, _ = bench.run("copied<float>", given, np.zeros(1))
    due = given.reshape(32, 4) * (1 - LANES % 2)[:, None].astype(np.uint32)
    np.testing.assert_array_equal(found[:128].reshape(32, 4), due)


def law_groups_of_copies(bench: Bench) -> None:
    """A group is complete after its wait, while a later one need not be."""
    given = np.random.default_rng(3).integers(1, 1 << 32, 256, dtype=np.uint32)
    found, _ = bench.run("copied_in_groups<float>", given, np.zeros(1))
    np.testing.assert_array_equal(found[:256], given)


def truncates(bench: Bench) -> bool:
    """Return True if sums of products are truncated, False if rounded to nearest.

    The manual leaves it open. Three quarters of the last place are added to 1.
    """
    half = np.float16([1.5 * 2.0**-12, 0, 2.0**-12, 0]).view(np.uint16)
    words = np.zeros((32, 6), np.uint32)
    words[LANES % 4 == 0, 0:2] = half[0]  # the first column of a
    words[LANES % 4 == 0, 4] = half[2]  # the first row of b
    _, sums = bench.run("product<f16>", words, np.ones((32, 4)))
    places = {float(x) for x in sums[:128]}
    assert len(places) == 1
    assert places <= {1.0, 1.0 + 2.0**-23}
    return places == {1.0}


LAWS: dict[str, Callable[[Bench], None]] = {
    "bfloat16": lambda bench: law_halves(bench, "bf16"),
    "float16": lambda bench: law_halves(bench, "f16"),
    "rows of matrices": lambda bench: law_matrices(bench, transposed=False),
    "columns of matrices": lambda bench: law_matrices(bench, transposed=True),
    "products of bfloat16": lambda bench: law_product(bench, "bf16"),
    "products of float16": lambda bench: law_product(bench, "f16"),
    "copies": law_copies,
    "groups of copies": law_groups_of_copies,
}
