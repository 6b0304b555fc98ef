"""Rate of a pool: verdicts per minute, and seconds of a verdict, on this machine.

Candidates are those of the examples, right and wrong, on NumPy and on PyTorch::

    python tools/grading_rate.py            # prints the table of docs/grading.md
    python tools/grading_rate.py --seconds 10 --jobs 4
"""

import argparse
import os
import resource
import statistics
import time

import click

from linkern.testing import grade_many

NUMPY = (
    "examples/chunked_attention.py:attention",
    "examples/chunked_attention.py:with_epsilon",
    "examples/chunked_attention.py:without_own_key",
    "linkern.testing.kernels.faulty:attention",
)
TORCH = ("examples/torch_attention.py:attention",)
HEADING = """\
| candidates | passed | median seconds | verdicts a minute | CPU seconds of each |
|---|---|---|---|---|"""


def measure(
    candidates: tuple[str, ...], seconds: float, jobs: int
) -> tuple[list[str], float, float]:
    """Return the verdicts, the median of their seconds, and the rate of a minute."""
    began = time.monotonic()
    grades = [
        *grade_many(candidates, op="linear_attention", seconds=seconds, jobs=jobs)
    ]
    rate = 60 * len(grades) / (time.monotonic() - began)
    median = statistics.median(grade.seconds for grade in grades)
    return [grade.verdict for grade in grades], median, rate


def main() -> None:
    """Print one row for each library."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--times", type=int, default=3, help="rounds of all candidates")
    options = parser.parse_args()
    click.echo(HEADING)
    for name, candidates in (("NumPy", NUMPY), ("PyTorch", TORCH)):
        used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        several = candidates * options.times
        verdicts, median, rate = measure(several, options.seconds, options.jobs)
        spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - used
        share = f"{verdicts.count('passed')} of {len(verdicts)}"
        each = spent / len(verdicts)
        click.echo(f"| {name} | {share} | {median:.1f} | {rate:.1f} | {each:.1f} |")
    click.echo(f"\n{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
