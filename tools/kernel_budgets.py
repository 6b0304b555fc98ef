"""What each kernel needs of a GPU, as the compiler says, held to what is recorded.

    python tools/kernel_budgets.py            # compile, and print a table
    python tools/kernel_budgets.py --check    # compare with `tools/kernel_budgets.json`
    python tools/kernel_budgets.py --write    # record what is compiled now

No GPU is needed. A kernel whose numbers do not fit into registers puts some of them
into memory, and is slow without being wrong; one that asks for more than a block may
have cannot be launched at all. Both depend on the GPU and on the arguments of the
template, and no test of results sees them.

registers
    Of each thread.
stack, spilled
    Bytes of memory that a thread uses beside: none.
static, dynamic
    Bytes of shared memory of a block: of the kernel; the most that a launch asks for.

Of all kernels that can be launched, so many are compiled and recorded for sm_90 that
each two arguments of a template meet in one of them, and for the others that each
argument is in one. With ``--every`` all are compiled for sm_90, which takes long, and
compared with what no kernel may need. A digest says whether the record was made of the
text of today; where it was, a check compiles only so many kernels that each argument is
in one of them for sm_90, and one of each template for the others, and a new record only
what is not there.
What is more than recorded fails; what is less should be recorded, or it can be lost
again unnoticed.
"""

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import combinations, product
from pathlib import Path
from typing import Any

import nvrtc
from cuda_instances import Instance, instances

from linkern.kernels.cuda.sources import source

FILE = Path(__file__).with_suffix(".json")
ACCEPT = "python tools/kernel_budgets.py --write"
# How many arguments of a template have to meet in some kernel, of all and of those.
Strengths = Mapping[str, tuple[int, ...]]
EVERY: Strengths = {"sm_90": ()}
RECORDED: Strengths = {"sm_80": (1,), "sm_90": (2,), "sm_100": (1,)}
CHECKED: Strengths = {"sm_80": (1, 0), "sm_90": (2, 1), "sm_100": (1, 0)}
PART = 8  # kernels that are compiled together
# Registers of one multiprocessor, given to warps in lots of 256, and the most shared
# memory that one block may have: CUDA C++ Programming Guide, "Compute Capabilities".
REGISTERS, LOT = 65536, 8
SHARED = {"sm_80": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10}
COLUMNS = ("threads", "registers", "stack", "spilled", "static", "dynamic")

Found = Mapping[str, Mapping[str, dict[str, int]]]  # by target, by kernel


def covering(names: Sequence[str], count: int) -> list[str]:
    """Return few kernels in which all that meets in any `count` arguments still does.

    Kernels of one template differ in few places, and what one argument costs seldom
    depends on more than one other.
    """
    left = {name: _meetings(name, count) for name in names}
    taken, missing = [], set().union(*left.values())
    while missing:
        best = max(left, key=lambda name: len(left[name] & missing))
        taken.append(best)
        missing -= left.pop(best)
    return sorted(taken)


def _meetings(name: str, count: int) -> set[tuple[Any, ...]]:
    kernel, _, arguments = name.removesuffix(">").partition("<")
    # A comma inside of an argument is none between two.
    places = list(enumerate(re.split(r", (?![^<]*>)", arguments)))
    count = min(count, len(places))
    return {(kernel, *meeting) for meeting in combinations(places, count)}


def digest(file: str) -> str:
    """Return a number that changes with the code of a file, not with its comments."""
    code = re.sub(r"//.*", "", source(file))
    return hashlib.sha256(" ".join(code.split()).encode()).hexdigest()[:16]


def label(file: str, kernel: str) -> str:
    """Return a name of which there is no other: files may have kernels of one name."""
    return f"{file}: {kernel}"


def possible(of: Sequence[Instance], target: str) -> list[Instance]:
    """Return those that ask for no more shared memory than a target has."""
    return [one for one in of if one.shared <= SHARED[target]]


def chosen(of: Sequence[Instance], file: str, counts: tuple[int, ...]) -> list[str]:
    """Return kernels of a file, of these some, and so on."""
    names = [one.kernel for one in of if one.file == file]
    for count in counts:
        names = covering(names, count)
    return names


def measured(
    of: Sequence[Instance],
    strengths: Strengths,
    *,
    known: Found | None = None,
    keep: Callable[[Found], object] = id,
) -> dict[str, dict[str, dict[str, int]]]:
    """Compile what is not known, and return by target and kernel what is needed.

    What is found so far is given to `keep` now and then: it can be the work of minutes.
    """
    asked = {(one.file, one.kernel): one for one in of}
    found: dict[str, dict[str, dict[str, int]]] = {target: {} for target in strengths}
    jobs = []
    for file, target in product(sorted({one.file for one in of}), strengths):
        before, left = (known or {}).get(target, {}), []
        for kernel in chosen(possible(of, target), file, strengths[target]):
            name = label(file, kernel)
            if name in before:
                found[target][name] = before[name] | launched(asked[file, kernel])
            else:
                left.append(kernel)
        # Parts of about the same length, for two processes.
        jobs += [(file, target, left[i : i + PART]) for i in range(0, len(left), PART)]
    with ProcessPoolExecutor(2) as pool:
        everything = pool.map(_compiled, jobs)
        for (file, target, _), needs in zip(jobs, everything, strict=True):
            for kernel, need in needs.items():
                more = launched(asked[file, kernel])
                found[target][label(file, kernel)] = need._asdict() | more
            keep(found)
    return found


def _compiled(job: tuple[str, str, list[str]]) -> dict[str, nvrtc.Needs]:
    file, target, kernels = job
    return nvrtc.compiled(source(file), target, kernels)


def launched(one: Instance) -> dict[str, int]:
    """Return what launches ask for."""
    return {"threads": one.threads, "dynamic": one.shared}


def still_true(recorded: Mapping[str, Any], of: Sequence[Instance]) -> Found:
    """Return the part of a record that was made of the text of today."""
    if recorded["compiler"] != nvrtc.version():
        return {}
    same = {x.file for x in of if recorded["texts"].get(x.file) == digest(x.file)}
    return {
        target: {x: n for x, n in kernels.items() if x.partition(": ")[0] in same}
        for target, kernels in recorded["targets"].items()
    }


def record(of: Sequence[Instance], found: Found) -> dict[str, Any]:
    """Return what is to be written."""
    files = sorted({one.file for one in of})
    return {
        "compiler": nvrtc.version(),
        "texts": {file: digest(file) for file in files},
        "targets": found,
    }


def to_text(recorded: Mapping[str, Any]) -> str:
    """Return a record as JSON, with a line for each kernel."""
    text = json.dumps(recorded, indent=1, sort_keys=True) + "\n"
    # The innermost objects hold numbers only.
    return re.sub(
        r'\{\s*("\w+": \d+[^{}]*?)\s*\}',
        lambda entry: "{" + re.sub(r"\s*\n\s*", " ", entry[1]) + "}",
        text,
    )


def check(
    recorded: Mapping[str, Any], of: Sequence[Instance], found: Found, compiler: str
) -> tuple[list[str], bool]:
    """Compare; return what to print, and whether all is as it has to be."""
    wrong = [
        *_strangers(recorded, of),
        *_beyond(recorded["targets"], "recorded: "),
        *_beyond(found),
    ]
    if recorded["compiler"] != compiler:
        wrong.append(f"recorded with NVRTC {recorded['compiler']}, this is {compiler}")
    wrong += [
        f"{file}: not the text that was recorded"
        for file in sorted({one.file for one in of})
        if recorded["texts"].get(file) != digest(file)
    ]
    more, less = _differences(recorded["targets"], of, found)
    wrong = list(dict.fromkeys([*wrong, *more]))
    if wrong:
        return [*wrong, f"If it must be: {ACCEPT}"], False
    if less:
        return [*less, f"Nothing is more than recorded. Record it: {ACCEPT}"], True
    return [], True


def _strangers(recorded: Mapping[str, Any], of: Sequence[Instance]) -> Iterable[str]:
    """Name the kernels that are recorded and cannot be launched, or the reverse."""
    files = {one.file for one in of}
    for target in RECORDED:
        due = {
            label(file, kernel)
            for file in files
            for kernel in chosen(possible(of, target), file, RECORDED[target])
        }
        known = {*recorded["targets"].get(target, {})}
        for kernel in sorted(due ^ known):
            state = "not recorded" if kernel in due else "recorded, and never launched"
            yield f"{target}: {kernel}: {state}"


def _beyond(found: Found, where: str = "") -> Iterable[str]:
    """Say what spills, and what no block can have."""
    for target, kernels in found.items():
        for kernel, needs in kernels.items():
            about = f"{where}{target}: {kernel}:"
            if needs["spilled"]:
                yield f"{about} spills {needs['spilled']} bytes of each thread"
            if needs["stack"]:
                yield f"{about} {needs['stack']} bytes of local memory for each thread"
            registers = -(-needs["registers"] // LOT) * LOT
            threads = -(-needs["threads"] // 32) * 32
            if registers * threads > REGISTERS:
                yield f"{about} {threads} threads of {registers} registers are too many"
            shared = needs["static"] + needs["dynamic"]
            if shared > SHARED[target]:
                yield f"{about} {shared:,} bytes shared; {SHARED[target]:,} at most"


def _differences(
    recorded: Found, of: Sequence[Instance], found: Found
) -> tuple[list[str], list[str]]:
    """Return lines for what is more than recorded, and for what is less."""
    more, less = [], []
    asked = {label(one.file, one.kernel): launched(one) for one in of}
    for target, kernels in recorded.items():
        for kernel, before in kernels.items():
            # What launches ask for is known of all, what the compiler says of some.
            now = {**asked.get(kernel, {}), **found.get(target, {}).get(kernel, {})}
            for name, number in now.items():
                if number == before[name]:
                    continue
                lines, word = (
                    (more, "more") if number > before[name] else (less, "less")
                )
                change = f"{name} {before[name]:,} -> {number:,}"
                lines.append(f"{target}: {kernel}: {word}: {change}")
    return more, less


def table(found: Found) -> list[str]:
    """Return what was found as lines of text."""
    width = max(len(kernel) for kernels in found.values() for kernel in kernels)
    lines = []
    for target, kernels in found.items():
        lines.append(f"{target:{width}}" + "".join(f"{name:>11}" for name in COLUMNS))
        lines += [
            f"{kernel:{width}}" + "".join(f"{needs[name]:>11,}" for name in COLUMNS)
            for kernel, needs in sorted(kernels.items())
        ]
    return lines


def main() -> int:
    """Compile, and print, compare or record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="compare with the record")
    what.add_argument("--write", action="store_true", help="record what is compiled")
    what.add_argument("--every", action="store_true", help="all kernels, for sm_90")
    options = parser.parse_args()
    of = instances()
    recorded = json.loads(FILE.read_text(encoding="utf-8"))
    if options.write:

        def keep(found: Found) -> None:
            FILE.write_text(to_text(record(of, found)), encoding="utf-8")

        found = measured(of, RECORDED, known=still_true(recorded, of), keep=keep)
        keep(found)
        lines = list(_beyond(found))
    elif options.every:
        lines = list(_beyond(measured(of, EVERY)))
        sys.stdout.writelines(f"{line}\n" for line in lines)
        return 1 if lines else 0
    elif options.check:
        lines, good = check(recorded, of, measured(of, CHECKED), nvrtc.version())
        sys.stdout.writelines(f"{line}\n" for line in lines)
        return 0 if good else 1
    else:
        lines = table(measured(of, CHECKED))
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
