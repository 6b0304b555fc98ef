"""Measure eight faulty kernels and write what is said of them, `docs/localisation.md`.

    python tools/localisation.py
    python tools/localisation.py --check

With ``--check`` nothing is written, and a page that differs is an error.
"""

import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

# Threads of BLAS would only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from localised import diagnosis_of
from pages import write_or_compare

from linkern.testing.kernels.mutants import MUTANTS
from linkern.testing.report.counting import declaring
from linkern.testing.report.thumbnail import thumbnail

__all__ = ["FAULTS", "page", "section"]

PAGE = Path(__file__).parents[1] / "docs" / "localisation.md"
WIDTH = 88

# Mutants of the kill matrix, and what their authors did.
FAULTS = {
    "carried_state_not_decayed": (
        "gated linear attention by chunks of 16. The state that a row reads from the "
        "chunks before it is not decayed to that row"
    ),
    "key_counted_twice_at_edge": (
        "linear attention by chunks of 16, whose tiles overlap: the last key of every "
        "chunk is added to the state twice"
    ),
    "noncausal_normalizer": (
        "linear attention that divides each row by the sum of the weights of all tokens"
    ),
    "gates_to_base_two": (
        "Kimi delta attention with `exp2` of gates that are natural logarithms"
    ),
    "rate_not_written": (
        "Kimi delta attention that erases with beta, and writes without it"
    ),
    "bonus_of_first_head": "RWKV-6 with the bonus of the first head in all heads",
    "tail_missing_in_state": (
        "gated linear attention whose final state is that after the last whole chunk"
    ),
    "query_lost_at_edge_backwards": (
        "the backward pass of linear attention: the last query of every chunk is "
        "missing in the gradient of the state"
    ),
}

# The prose of the page stands before it.
MARK = "<!-- What follows is written by tools/localisation.py; do not edit it. -->"


def page() -> str:
    """Return the page: its prose as it is, and what is measured now."""
    sections = (section(name, did) for name, did in FAULTS.items())
    text = PAGE.read_text(encoding="utf-8")
    prose = text[: text.index(MARK)]
    return f"{prose}{MARK}\n" + "".join(f"\n{section}" for section in sections)


def section(name: str, did: str) -> str:
    """Return what is said of a mutant, under its name."""
    diagnosis = diagnosis_of(MUTANTS[name])
    if diagnosis is None or diagnosis.picture is None:
        return f"## `{name}`\n\n{_wrapped(did)}.\n\nNothing was measured.\n"
    said = {
        "cause": diagnosis.sentence,
        "or as well": "; ".join(diagnosis.alternatives),
        "usual line": diagnosis.hint,
        "if that is meant": declaring(diagnosis),
    }
    lines = [line for label, text in said.items() for line in _entry(label, text)]
    body = "\n".join([*lines, "", *thumbnail(diagnosis.picture)])
    title = f"## `{name}`: {diagnosis.stage}\n\n{_wrapped(f'A kernel of {did}.')}\n"
    return f"{title}\n```text\n{body}\n```\n"


def _entry(label: str, text: str) -> Iterator[str]:
    if text:
        indent = " " * (len(label) + 2)
        yield from textwrap.wrap(
            f"{label}: {text}", WIDTH, subsequent_indent=indent, break_on_hyphens=False
        )


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_on_hyphens=False)


if __name__ == "__main__":
    sys.exit(write_or_compare(PAGE, page, __doc__))
