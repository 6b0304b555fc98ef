"""The emulator executes like a GPU, and finds undefined behaviour."""

from pathlib import Path

import numpy as np
import pytest

from linkern.kernels.cuda.launch import Launch
from linkern.kernels.cuda.layouts import record
from tests.kernels.cuda.emulator.device import Change, Emulator, LaunchFailed, Way
from tests.kernels.cuda.emulator.watched import Run, reports
from tests.kernels.cuda.emulator.wrappers import LAWS, WRAPPERS, Bench, truncates
from tests.marks import slow_unless

FAULTS = str(Path(__file__).parent / "kernels" / "faults")


def run(device, kernel, right, *, threads=64, blocks=1, shared=4096, count=1024):
    numbers = np.zeros(count, np.float32)
    numbers[...] = np.arange(count)
    launch = Launch(
        FAULTS,
        f"{kernel}<{'true' if right else 'false'}>",
        blocks,
        threads,
        shared,
        record(at=device.address(numbers), count=np.int32(count)),
    )
    device.launch(launch)
    return numbers


# -- it executes like a GPU


@pytest.mark.parametrize("law", LAWS)
def test_wrappers_do_what_the_manual_says(law):
    LAWS[law](Bench(Emulator()))


@pytest.mark.parametrize(
    ("law", "old", "new"),
    [
        ("bfloat16", "low(T(), of.given[i]);", "high(T(), of.given[i]);"),
        ("float16", "pack(T(), of.numbers[2 * i],", "pack(T(), 2 * of.numbers[2 * i],"),
        ("rows of matrices", "found[i];", "found[3 - i];"),
        (
            "columns of matrices",
            "ldmatrix_transposed(found",
            "ldmatrix(found",
        ),
        ("products of bfloat16", "a[i] = of.given[lane * 6 + i]", "a[i] = 0"),
        ("products of float16", "sum[i] = of.numbers[lane * 4 + i]", "sum[i] = 0"),
        ("copies", "there);", "true);"),
        ("groups of copies", "cp_async_wait<1>();", "cp_async_wait<2>();"),
    ],
)
def test_wrong_wrappers_are_found(law, old, new):
    device = Emulator(changed=[Change(old, new)])
    if law == "copies":  # an invalid source is read
        device = Emulator(changed=[Change("lane % 2 == 0", "true")])
    with pytest.raises(AssertionError):
        LAWS[law](Bench(device))


def test_every_kernel_of_the_file_has_a_wrapper():
    text = Path(WRAPPERS + ".cu").read_text(encoding="utf-8")
    assert text.count("__global__") == 5


@pytest.mark.parametrize("truncated", [False, True])
def test_truncated_sums_are_recognized(truncated):
    assert truncates(Bench(Emulator(Way(truncates=truncated)))) == truncated


# -- it finds undefined behaviour

FAILS = {
    "unfinished_copy": "cp.async that it has not waited for",
    "misplaced_copy": "no multiple of 16 bytes",
    "misplaced_row": "multiple of 16 bytes",
    "early_end": "a thread ends where others wait",
    "different_barriers": "different __syncthreads",
    "different_instructions": "different instructions",
    "lane_missing": "deadlock",
}


@pytest.mark.parametrize("kernel", FAILS)
def test_undefined_behaviour_fails(kernel):
    threads = 32 if kernel in ("misplaced_row", "lane_missing") else 64
    run(Emulator(), kernel, True, threads=threads)
    with pytest.raises(LaunchFailed, match=FAILS[kernel]):
        run(Emulator(), kernel, False, threads=threads)


WAYS = [Way("forward"), Way("reverse"), Way("ahead", seed=2)]


@pytest.mark.parametrize("kernel", ["barrier", "overwritten"])
def test_missing_barriers_change_results_if_a_warp_runs_ahead(kernel):
    right = [run(Emulator(way), kernel, True).tobytes() for way in WAYS]
    wrong = [run(Emulator(way), kernel, False).tobytes() for way in WAYS]
    assert len(set(right)) == 1
    assert set(wrong) - set(right)


def test_a_copy_finishes_at_its_wait_and_not_before():
    late, soon = Way(landing="when waited for"), Way(landing="at once")
    expected = run(Emulator(late), "copies", True)[:64]
    np.testing.assert_array_equal(expected, 8 * np.arange(64) + 4)
    np.testing.assert_array_equal(run(Emulator(soon), "copies", False)[:64], expected)
    assert np.isnan(run(Emulator(late), "copies", False)[:64]).all()


def test_uninitialised_memory_is_nan():
    assert (run(Emulator(), "unwritten", True)[:64] == 0).all()
    assert np.isnan(run(Emulator(), "unwritten", False)[:64]).all()


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"threads": 1025}, "1 to 1024 threads"),
        ({"threads": 0}, "1 to 1024 threads"),
        ({"blocks": 0}, "1 to 2.31 - 1 blocks"),
    ],
)
def test_impossible_launches_fail(options, rule):
    with pytest.raises(LaunchFailed, match=rule):
        run(Emulator(), "barrier", True, **options)


# -- reports of sanitizers, each in one process


def faulty(kernel, right, **options):
    return lambda device: run(device, kernel, right, **options)


RACES = ("barrier", "warp_barrier", "overwritten", "between_blocks")
OVERRUNS = ("beyond_shared", "beyond_global")
OPTIONS = {
    "warp_barrier": {"threads": 32},
    "between_blocks": {"blocks": 3},
    "beyond_shared": {"shared": 4096},
}
WATCHED = {
    f"{kernel} {'right' if right else 'wrong'}": faulty(
        kernel, right, **OPTIONS.get(kernel, {})
    )
    for kernel in (*RACES, *OVERRUNS)
    for right in (True, False)
}


@pytest.mark.parametrize(
    ("mode", "kernels"),
    slow_unless(
        lambda mode, _: mode == "address", [("thread", RACES), ("address", OVERRUNS)]
    ),
)
def test_sanitizers_report_wrong_kernels_only(mode, kernels):
    names = [f"{kernel} {state}" for kernel in kernels for state in ("right", "wrong")]
    way = Way(resident=3)
    results = reports(
        mode,
        [
            Run(f"tests.kernels.cuda.emulator.test_emulator:WATCHED:{name}", way=way)
            for name in names
        ],
    )
    reported = {name for name, lines in zip(names, results, strict=True) if lines}
    assert reported == {name for name in names if name.endswith("wrong")}
