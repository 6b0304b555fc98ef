"""Registers and shared memory of each CUDA kernel, compared with a record.

    python tools/kernel_budgets.py            # compile and print a table
    python tools/kernel_budgets.py --check    # compare with `tools/kernel_budgets.json`
    python tools/kernel_budgets.py --write    # write a new record

No GPU is needed. A kernel with too few registers spills into local memory: it is slow
and not wrong. A kernel that needs more shared memory than a block may have cannot be
launched. Both depend on the GPU and on template arguments, and no test of results sees
them.

registers
    Registers of each thread.
stack, spilled
    Bytes of local memory of each thread: must be zero.
static, dynamic
    Bytes of shared memory of a block: static of the kernel, most of any launch.

The record holds a covering set of the kernels that can be launched: for sm_90 every
pair of template arguments, for the other targets every argument. ``--check`` compiles a
smaller set: for sm_90 every argument, for the others one kernel per template.
``--every`` compiles all kernels for sm_90, which takes long, and checks absolute limits
only. A digest of the source text says if the record is current; ``--write`` compiles
only kernels whose text has changed.
More than recorded fails; less should be recorded, or it can be lost again unnoticed.
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
# Template arguments of which each combination is covered: first of all kernels, then of
# those chosen before.
Strengths = Mapping[str, tuple[int, ...]]
EVERY: Strengths = {"sm_90": ()}
RECORDED: Strengths = {"sm_80": (1,), "sm_90": (2,), "sm_100": (1,)}
CHECKED: Strengths = {"sm_80": (1, 0), "sm_90": (2, 1), "sm_100": (1, 0)}
PART = 8  # kernels that are compiled together
# Registers of a multiprocessor, allocated per thread in lots of 8, and the most shared
# memory of a block: CUDA C++ Programming Guide, "Compute Capabilities".
REGISTERS, LOT = 65536, 8
SHARED = {"sm_80": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10}
COLUMNS = ("threads", "registers", "stack", "spilled", "static", "dynamic")

Needs = Mapping[str, Mapping[str, dict[str, int]]]  # by target and kernel


def covering(names: Sequence[str], count: int) -> list[str]:
    """Return few kernels that have all combinations of any `count` arguments.

    What one template argument costs seldom depends on more than one other.
    """
    candidates = {name: _combinations(name, count) for name in names}
    chosen, missing = [], set().union(*candidates.values())
    while missing:
        best = max(candidates, key=lambda name: len(candidates[name] & missing))
        chosen.append(best)
        missing -= candidates.pop(best)
    return sorted(chosen)


def _combinations(name: str, count: int) -> set[tuple[Any, ...]]:
    kernel, _, arguments = name.removesuffix(">").partition("<")
    # Commas inside of an argument do not separate two.
    places = list(enumerate(re.split(r", (?![^<]*>)", arguments)))
    count = min(count, len(places))
    return {(kernel, *chosen) for chosen in combinations(places, count)}


def digest(file: str) -> str:
    """Return a hash of the code of a file without its comments."""
    code = re.sub(r"//.*", "", source(file))
    return hashlib.sha256(" ".join(code.split()).encode()).hexdigest()[:16]


def label(file: str, kernel: str) -> str:
    """Return the name of a kernel in the record."""
    return f"{file}: {kernel}"


def launchable(kernels: Sequence[Instance], target: str) -> list[Instance]:
    """Return the kernels that need no more shared memory than a target has."""
    return [one for one in kernels if one.shared <= SHARED[target]]


def chosen(
    kernels: Sequence[Instance], file: str, counts: tuple[int, ...]
) -> list[str]:
    """Return a covering set of the kernels of a file, one of that set, and so on."""
    names = [one.kernel for one in kernels if one.file == file]
    for count in counts:
        names = covering(names, count)
    return names


def measured(
    all_kernels: Sequence[Instance],
    strengths: Strengths,
    *,
    known: Needs | None = None,
    keep: Callable[[Needs], object] = id,
) -> dict[str, dict[str, dict[str, int]]]:
    """Return the needs of kernels by target and label; compile those not `known`.

    Intermediate results are passed to `keep`, since compilation takes minutes.
    """
    by_name = {(one.file, one.kernel): one for one in all_kernels}
    needs: dict[str, dict[str, dict[str, int]]] = {target: {} for target in strengths}
    jobs = []
    for file, target in product(sorted({one.file for one in all_kernels}), strengths):
        recorded, unknown = (known or {}).get(target, {}), []
        for kernel in chosen(launchable(all_kernels, target), file, strengths[target]):
            name = label(file, kernel)
            if name in recorded:
                launch = launch_needs(by_name[file, kernel])
                needs[target][name] = recorded[name] | launch
            else:
                unknown.append(kernel)
        # Jobs of similar length, for two processes.
        parts = range(0, len(unknown), PART)
        jobs += [(file, target, unknown[i : i + PART]) for i in parts]
    with ProcessPoolExecutor(2) as pool:
        results = pool.map(_compiled, jobs)
        for (file, target, _), compiled in zip(jobs, results, strict=True):
            for kernel, need in compiled.items():
                launch = launch_needs(by_name[file, kernel])
                needs[target][label(file, kernel)] = need._asdict() | launch
            keep(needs)
    return needs


def _compiled(job: tuple[str, str, list[str]]) -> dict[str, nvrtc.Needs]:
    file, target, kernels = job
    return nvrtc.compiled(source(file), target, kernels)


def launch_needs(kernel: Instance) -> dict[str, int]:
    """Return threads and dynamic shared memory that launches ask for."""
    return {"threads": kernel.threads, "dynamic": kernel.shared}


def current(recorded: Mapping[str, Any], all_kernels: Sequence[Instance]) -> Needs:
    """Return the part of a record that was made from the current source text."""
    if recorded["compiler"] != nvrtc.version():
        return {}
    files = {
        x.file for x in all_kernels if recorded["texts"].get(x.file) == digest(x.file)
    }
    return {
        target: {x: n for x, n in kernels.items() if x.partition(": ")[0] in files}
        for target, kernels in recorded["targets"].items()
    }


def record(all_kernels: Sequence[Instance], needs: Needs) -> dict[str, Any]:
    """Return a record of the current source text."""
    files = sorted({one.file for one in all_kernels})
    return {
        "compiler": nvrtc.version(),
        "texts": {file: digest(file) for file in files},
        "targets": needs,
    }


def to_text(recorded: Mapping[str, Any]) -> str:
    """Return a record as JSON with one line for each kernel."""
    text = json.dumps(recorded, indent=1, sort_keys=True) + "\n"
    # The innermost objects hold numbers only.
    return re.sub(
        r'\{\s*("\w+": \d+[^{}]*?)\s*\}',
        lambda entry: "{" + re.sub(r"\s*\n\s*", " ", entry[1]) + "}",
        text,
    )


def check(
    recorded: Mapping[str, Any],
    all_kernels: Sequence[Instance],
    needs: Needs,
    compiler: str,
) -> tuple[list[str], bool]:
    """Compare with a record; return lines to print, and True if the check passes."""
    wrong = [
        *_missing_or_stale(recorded, all_kernels),
        *_beyond_limits(recorded["targets"], "recorded: "),
        *_beyond_limits(needs),
    ]
    if recorded["compiler"] != compiler:
        wrong.append(f"recorded with NVRTC {recorded['compiler']}, this is {compiler}")
    wrong += [
        f"{file}: not the text that was recorded"
        for file in sorted({one.file for one in all_kernels})
        if recorded["texts"].get(file) != digest(file)
    ]
    more, less = _differences(recorded["targets"], all_kernels, needs)
    wrong = list(dict.fromkeys([*wrong, *more]))
    if wrong:
        return [*wrong, f"If it must be: {ACCEPT}"], False
    if less:
        return [*less, f"Nothing is more than recorded. Record it: {ACCEPT}"], True
    return [], True


def _missing_or_stale(
    recorded: Mapping[str, Any], all_kernels: Sequence[Instance]
) -> Iterable[str]:
    """Name kernels that are missing from a record or are never launched."""
    files = {one.file for one in all_kernels}
    for target in RECORDED:
        kernels = launchable(all_kernels, target)
        required = {
            label(file, kernel)
            for file in files
            for kernel in chosen(kernels, file, RECORDED[target])
        }
        known = {*recorded["targets"].get(target, {})}
        for kernel in sorted(required ^ known):
            missing = kernel in required
            state = "not recorded" if missing else "recorded, and never launched"
            yield f"{target}: {kernel}: {state}"


def _beyond_limits(needs: Needs, prefix: str = "") -> Iterable[str]:
    """Describe kernels that spill, and needs that no block can have."""
    for target, kernels in needs.items():
        for kernel, need in kernels.items():
            about = f"{prefix}{target}: {kernel}:"
            if need["spilled"]:
                yield f"{about} spills {need['spilled']} bytes of each thread"
            if need["stack"]:
                yield f"{about} {need['stack']} bytes of local memory for each thread"
            registers = -(-need["registers"] // LOT) * LOT
            threads = -(-need["threads"] // 32) * 32
            if registers * threads > REGISTERS:
                yield f"{about} {threads} threads of {registers} registers are too many"
            shared = need["static"] + need["dynamic"]
            if shared > SHARED[target]:
                yield f"{about} {shared:,} bytes shared; {SHARED[target]:,} at most"


def _differences(
    recorded: Needs, all_kernels: Sequence[Instance], needs: Needs
) -> tuple[list[str], list[str]]:
    """Return lines for needs that are more than recorded, and less."""
    more, less = [], []
    launches = {label(one.file, one.kernel): launch_needs(one) for one in all_kernels}
    for target, kernels in recorded.items():
        for kernel, before in kernels.items():
            # Needs of launches are known for all kernels, the compiler's for some.
            compiled = needs.get(target, {}).get(kernel, {})
            now = {**launches.get(kernel, {}), **compiled}
            for name, number in now.items():
                if number == before[name]:
                    continue
                lines, word = (
                    (more, "more") if number > before[name] else (less, "less")
                )
                change = f"{name} {before[name]:,} -> {number:,}"
                lines.append(f"{target}: {kernel}: {word}: {change}")
    return more, less


def table(needs: Needs) -> list[str]:
    """Return needs as lines of text."""
    width = max(len(kernel) for kernels in needs.values() for kernel in kernels)
    lines = []
    for target, kernels in needs.items():
        lines.append(f"{target:{width}}" + "".join(f"{name:>11}" for name in COLUMNS))
        lines += [
            f"{kernel:{width}}" + "".join(f"{need[name]:>11,}" for name in COLUMNS)
            for kernel, need in sorted(kernels.items())
        ]
    return lines


def main() -> int:
    """Compile, then print, compare or record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--check", action="store_true", help="compare with the record")
    action.add_argument("--write", action="store_true", help="write a new record")
    action.add_argument("--every", action="store_true", help="all kernels, for sm_90")
    options = parser.parse_args()
    kernels = instances()
    recorded = json.loads(FILE.read_text(encoding="utf-8"))
    if options.write:

        def keep(needs: Needs) -> None:
            FILE.write_text(to_text(record(kernels, needs)), encoding="utf-8")

        known = current(recorded, kernels)
        needs = measured(kernels, RECORDED, known=known, keep=keep)
        keep(needs)
        lines = list(_beyond_limits(needs))
    elif options.every:
        lines = list(_beyond_limits(measured(kernels, EVERY)))
        sys.stdout.writelines(f"{line}\n" for line in lines)
        return 1 if lines else 0
    elif options.check:
        needs = measured(kernels, CHECKED)
        lines, good = check(recorded, kernels, needs, nvrtc.version())
        sys.stdout.writelines(f"{line}\n" for line in lines)
        return 0 if good else 1
    else:
        lines = table(measured(kernels, CHECKED))
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
