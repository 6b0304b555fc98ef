"""Measure the processor time of diagnoses: the slowest kernels of each operator.

    python tools/diagnosis_time.py              # one correct kernel of each operator
    python tools/diagnosis_time.py NAME ...     # some correct kernels and mutants

Of a correct kernel every part is measured, so that its diagnosis takes as long as one
of its operator takes. Exact answers are computed anew for every kernel, in one process
and one thread of BLAS; the table is in Markdown.
"""

import os
import sys
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from kill_matrix import KERNELS, dtype_of
from localised import diagnosis_of

from linkern.testing.kernels.correct import CORRECT

__all__ = ["chosen", "lines", "seconds"]

HEAD = ("| kernel | operator | dtype | seconds of a processor |", "|---|---|---|---|")


def chosen(names: list[str]) -> list[str]:
    """Return the kernels of some names; the first correct one of each operator."""
    first = {kernel.op: name for name, kernel in reversed(CORRECT.items())}
    return names or sorted(first.values(), key=lambda name: CORRECT[name].op)


def seconds(name: str) -> float:
    """Return the processor time of the diagnosis of a kernel."""
    began = time.process_time()
    diagnosis_of(KERNELS[name], dtype_of(KERNELS[name]))
    return time.process_time() - began


def lines(names: list[str]) -> list[str]:
    """Return the table, the slowest kernel first."""
    measured = {name: seconds(name) for name in names}
    rows = sorted(measured.items(), key=lambda pair: -pair[1])
    return [
        *HEAD,
        *(
            f"| `{name}` | {KERNELS[name].op} | {dtype_of(KERNELS[name])} | {x:.1f} |"
            for name, x in rows
        ),
    ]


if __name__ == "__main__":
    sys.stdout.write("\n".join(lines(chosen(sys.argv[1:]))) + "\n")
