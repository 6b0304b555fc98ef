"""Diagnose each kernel of the unseen set once, and compare with what is wrong.

    python tools/unseen.py docs/benchmarks/unseen-COMMIT.jsonl
    python tools/unseen.py docs/benchmarks/unseen-COMMIT.jsonl --report

The set is `tests/testing/diagnosis/unseen/`: 32 faults, drawn by chance, written by
somebody who had not read the diagnosis. It tells what `linkern verify` says of faults
that nobody had in view, as long as nobody mends the diagnosis by it. A kernel is a line
of the file, as soon as it has been diagnosed: name, operator, the words that are right,
those that were said, the outcomes of *where* and *by what* (right, silent, wrong, or
"no product" where no factor is right and none was said), and seconds of CPU. What is
in the file is not measured again. With ``--report`` nothing is.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

# Threads of BLAS would only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from localised import DASH, NO_PRODUCT, WRONG, compared, diagnosis_of
from truth import Expected, expectations

from linkern.testing.kernels.mutants import Mutant
from tests.testing.diagnosis.unseen.kernels import UNSEEN

__all__ = ["measured", "report"]

TRUTH = ROOT / "tests" / "testing" / "diagnosis" / "unseen" / "truth.txt"
OUTCOMES = ("right", "silent", "wrong", NO_PRODUCT)

Line = dict[str, Any]


def measured(mutant: Mutant, expected: Expected) -> Line:
    """Return the line of a kernel: what is said of it, and if that is right."""
    start = time.process_time()
    said: Line = {"stage": "", "where": "", "by": "", "name": "", "sentence": ""}
    try:
        diagnosis = diagnosis_of(mutant)
    except Exception as error:  # the record says so, and others are still measured
        diagnosis, said["raised"] = None, repr(error)
    seconds = time.process_time() - start
    where, by = compared(expected, diagnosis)
    if diagnosis is not None:
        for key in ("stage", "where", "name", "sentence"):
            said[key] = getattr(diagnosis, key)
        said["by"] = diagnosis.by_what
        said["alternatives"] = [*diagnosis.alternatives]
    if by == DASH and expected.by[:1] in ((), ("none",)):
        by = NO_PRODUCT
    truth = {"where": [*expected.where], "by": [*expected.by]}
    return {
        "kernel": mutant.name,
        "op": mutant.op,
        "truth": truth,
        "said": said,
        "where": _outcome(where),
        "by": _outcome(by),
        "seconds": round(seconds, 2),
    }


def _outcome(cell: str) -> str:
    if cell in (DASH, NO_PRODUCT):
        return "silent" if cell == DASH else NO_PRODUCT
    return "wrong" if cell.startswith(WRONG) else "right"


def report(lines: list[Line]) -> str:
    """Return a table of all kernels in Markdown, and the shares above it."""
    rows = ["| result | " + " | ".join(OUTCOMES) + " |", "|---|" + "---|" * 4]
    for key in ("where", "by"):
        counts = Counter(line[key] for line in lines)
        shares = (f"{counts[x]} of {len(lines)}" for x in OUTCOMES)
        rows.append(f"| {key} | {' | '.join(shares)} |")
    seconds = [line["seconds"] for line in lines]
    longest, total = max(seconds, default=0.0), sum(seconds)
    rows.append(f"\nCPU: {total:.0f} s in all, at most {longest:.1f} s for a kernel.\n")
    rows += ["| kernel | operator | where | said | by what | said | CPU s |"]
    rows += ["|---|---|---|---|---|---|---|"]
    for line in lines:
        said = [
            line["said"][key].replace("|", "\\|") or DASH for key in ("where", "by")
        ]
        cells = (line["kernel"], line["op"], line["where"], said[0], line["by"])
        rows.append(f"| {' | '.join(cells)} | {said[1]} | {line['seconds']:.1f} |")
    return "\n".join(rows) + "\n"


def main() -> int:
    """Diagnose the kernels that are not in the file yet, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--report", action="store_true", help="of the file as it is")
    chosen, lines = parser.parse_args(), []
    if chosen.results.exists():
        text = chosen.results.read_text(encoding="utf-8")
        lines = [json.loads(line) for line in text.splitlines()]
    known = {line["kernel"] for line in lines}
    missing = [] if chosen.report else [name for name in UNSEEN if name not in known]
    for name in missing:
        lines.append(measured(UNSEEN[name], expectations(TRUTH)[name]))
        with chosen.results.open("a", encoding="utf-8") as results:
            results.write(json.dumps(lines[-1]) + "\n")
    sys.stdout.write(report(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
