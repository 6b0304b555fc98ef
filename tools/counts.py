"""Count the NumPy calls of the library, their work and their allocations.

    python tools/counts.py            # print a table
    python tools/counts.py --check    # compare with `tools/counts.json`
    python tools/counts.py --write    # record the current counts

Unlike a time, a count does not depend on the machine. For each scenario, on one thread
and after a first call:

calls
    Calls of NumPy that compute or copy: functions, operators and methods. Views and
    queries of shapes and dtypes are not counted.
multiply_adds
    Multiply-adds of matrix products.
elements
    Size of the largest array of each call that is no matrix product, summed.
arrays, bytes
    New arrays, and their bytes.
peak
    Peak bytes of NumPy and Python, as `tracemalloc` reports them. The only count with a
    tolerance: Python objects differ in size between versions.

Any count above the record fails. A count below it should be recorded, so that a later
increase is noticed.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from counted import TOTALS, Call, count

import linkern

FILE = Path(__file__).with_suffix(".json")
# Tolerance of a peak: a fraction of it, and some bytes of Python objects.
PEAK_PART, PEAK_BYTES = 0.05, 2**14
HEADS, DIM = 2, 64
ACCEPT = "python tools/counts.py --write"


def inputs_of(operator: str, tokens: int | None, kind: type) -> dict[str, Any]:
    """Return float32 inputs, 2 heads, K = V = 64; one token if `tokens` is None."""
    rng = np.random.default_rng(0)
    token = (HEADS,) if tokens is None else (HEADS, tokens)
    query, key, value = rng.normal(size=(3, *token, DIM))
    inputs = {
        "query": query,
        "key": key / np.linalg.norm(key, axis=-1, keepdims=True),
        "value": value,
    }
    per_channel = (DIM,) if operator == "gla" else ()
    if operator not in ("linear_attention", "delta_rule"):
        inputs["log_decay"] = -abs(rng.normal(size=(*token, *per_channel))) / 10
    if "delta" in operator:
        inputs["beta"] = rng.uniform(size=token)
    return {name: x.astype("float32").view(kind) for name, x in inputs.items()}


def forward(
    operator: str, tokens: int, kind: type, dtype: str = "float32", **options: Any
) -> Call:
    """Call an operator."""
    inputs = inputs_of(operator, tokens, kind)
    inputs = {name: x.astype(dtype) for name, x in inputs.items()}
    return partial(getattr(linkern, operator), **inputs, **options)


def backward(operator: str, tokens: int, kind: type) -> Call:
    """Call the vjp of an operator, with cotangents of its output and state."""
    inputs = inputs_of(operator, tokens, kind)

    def call() -> object:
        result, pullback = linkern.vjp(getattr(linkern, operator), **inputs)
        return pullback(result.output, result.state)

    return call


def decoder(kind: type) -> Call:
    """Decode as many tokens as a window has, so that one step updates the memory."""
    token = inputs_of("linear_attention", None, kind)
    state = linkern.linear_attention_step(None, **token).state
    steps = linkern.Decoder(state)

    def call() -> object:
        return [steps.step(**token) for _ in range(16)]

    return call


def linear_step(kind: type) -> Call:
    """Run one step of linear attention."""
    token = inputs_of("linear_attention", None, kind)
    state = linkern.linear_attention_step(None, **token).state
    for _ in range(2):  # later ones are all alike
        state = linkern.linear_attention_step(state, **token).state
    return lambda: linkern.linear_attention_step(state, **token)


def step(operator: str, kind: type) -> Call:
    """Run one step of an operator."""
    token, op = inputs_of(operator, None, kind), getattr(linkern, operator)
    state = linkern.step(op, None, **token).state
    return lambda: linkern.step(op, state, **token)


def _scenarios() -> Iterator[tuple[str, Callable[[type], Call]]]:
    one = "linear_attention"
    # 1000 tokens: 15 chunks of 64, and 40 tokens more.
    for form in ("auto", "chunkwise", "parallel"):
        yield f"{one}, {form}, 1000 tokens", partial(forward, one, 1000, form=form)
    yield f"{one}, auto, 4000 tokens", partial(forward, one, 4000)
    for dtype in ("float16", "float64"):
        yield f"{one}, auto, {dtype}", partial(forward, one, 1000, dtype=dtype)
    yield f"{one}, not causal", partial(forward, one, 1000, causal=False)
    yield f"{one}, not normalised", partial(forward, one, 1000, normalize=False)
    yield f"{one}, recurrent, 200 tokens", partial(forward, one, 200, form="recurrent")
    for operator in ("simple_gla", "gla", "delta_rule", "gated_delta_rule"):
        yield f"{operator}, auto, 1000 tokens", partial(forward, operator, 1000)
    for operator in ("simple_gla", "gated_delta_rule"):
        recurrent = partial(forward, operator, 200, form="recurrent")
        yield f"{operator}, recurrent, 200 tokens", recurrent
    for operator in (one, "simple_gla", "gated_delta_rule"):
        yield f"vjp of {operator}, 1000 tokens", partial(backward, operator, 1000)
    yield "Decoder.step, 16 tokens", decoder
    yield "linear_attention_step", linear_step
    yield "step of gated_delta_rule", partial(step, "gated_delta_rule")


SCENARIOS = dict(_scenarios())


def differences(recorded: Mapping[str, Any], counts: Mapping[str, Any]) -> list[str]:
    """Return a line for each total of a scenario that differs from the record."""
    lines = []
    for total in TOTALS:
        before, now = recorded[total], counts[total]
        if now == before or (total == "peak" and abs(now - before) <= margin(before)):
            continue
        part = f" ({now / before - 1:+.1%})" if before else ""
        more = "more" if now > before else "less"
        lines.append(f"{more}: {total} {before:,} -> {now:,}{part}")
    names = sorted({*recorded["by"], *counts["by"]})
    pairs = [
        (name, recorded["by"].get(name, 0), counts["by"].get(name, 0)) for name in names
    ]
    changed = [
        f"{name} {before} -> {now}" for name, before, now in pairs if before != now
    ]
    if changed:
        lines.append("calls by name: " + ", ".join(changed))
    return lines


def margin(peak: int) -> float:
    """Return the tolerance of a peak, in bytes."""
    return PEAK_PART * peak + PEAK_BYTES


def check(
    recorded: Mapping[str, Mapping[str, Any]], counts: Mapping[str, Mapping[str, Any]]
) -> tuple[list[str], bool]:
    """Compare counts; return the lines to print, and True if none has increased."""
    lines, good, same = [], True, True
    for name in sorted({*recorded, *counts}):
        if name not in recorded or name not in counts:
            where = "recorded" if name not in recorded else "counted any more"
            lines.append(f"{name}: not {where}")
            good = same = False
            continue
        changed = differences(recorded[name], counts[name])
        lines += [f"{name}: {line}" for line in changed]
        good = good and not any(line.startswith("more") for line in changed)
        same = same and not changed
    if not good:
        lines.append(f"More is asked of NumPy than recorded. If it must be: {ACCEPT}")
    elif not same:
        lines.append(f"Not as recorded, and nothing is more. Record it: {ACCEPT}")
    return lines, good


def table(counts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the counts as lines of text."""
    width = max(map(len, counts))
    head = f"{'scenario':{width}}" + "".join(f"{total:>16}" for total in TOTALS)
    rows = (
        f"{name:{width}}" + "".join(f"{totals[total]:>16,}" for total in TOTALS)
        for name, totals in counts.items()
    )
    return [head, *rows]


def main() -> int:
    """Count, and print, compare or record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="compare with the record")
    what.add_argument("--write", action="store_true", help="record the current counts")
    options = parser.parse_args()
    counts = {name: count(prepare) for name, prepare in SCENARIOS.items()}
    if options.write:
        FILE.write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")
        return 0
    if options.check:
        lines, good = check(json.loads(FILE.read_text(encoding="utf-8")), counts)
    else:
        lines, good = table(counts), True
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
