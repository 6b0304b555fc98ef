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

HEAD = """\
# Where it is wrong, and by what

<!-- Written by tools/localisation.py; do not edit. -->

If a kernel fails, `linkern verify` says where its results are wrong and by what factor.
It looks nothing up in a list of known bugs: both are measured.

- **The map.** An output is linear in the values. Values that are 1 at one token and 0
  at all others return the weight with which that token reaches each row; states and
  gradients are read in the same way. Each weight is compared with the exact one, in
  units of the bound that no correct kernel exceeds.
- **Where.** Of all sets of rows, sources, heads, channels, chunks, sequences and
  lengths, the one that describes the wrong weights in the fewest words. None is said
  that holds what is right: usual calls, or a whole call, or most of what lies at its
  end.
- **By what.** Measured over exact weights, as the shortest product of quantities at
  hand: gates, beta, scale, counts, features, sums over a chunk. It is said if it holds
  within rounding on other inputs; if none does, the ratios are shown as numbers.

A place and a factor are no proof of the cause. The *usual line* is the line of code
that most often has such an effect.

**What no map holds.** Outputs are linear in values and states, and in keys where those
carry the impulses. They are not linear in gates, beta and other keys, so these have no
maps of their own: a gate that is wrong shows in the weights of values that it decays,
as a factor of them, or as the operator computes them with one input replaced, tried on
fresh inputs. The weight of a gate in an output is read in the gradients, which are
compared with exact ones; there are no differences of calls on dyadic inputs. So where a
target has no gradients, a gate is seen in products alone, and of a wrong input that no
product and none of the replacements tells, the place is said and the ratios are shown.

**States and chunks.** What comes back through a state is a sum over its entries, and no
product tells which of them a kernel has read. Where a sequence is right up to a cut and
wrong after it, the operator goes on from states that are transposed, reshaped, of
another head, or without one of their parts, and what then comes out is compared.

**Packed sequences.** The weight of a token of another sequence is 0, which no factor
makes of anything. What leaks is compared with the weight that the token has where the
sequences are joined, or go on from the state of the other: a state that is not reset,
or is that of another sequence, is told by that, and one that fades by the factor that
is left.

**Delta rules.** A weight is a sum over all ways from its source to its row, since rows
erase what others have written. Where each key has one channel, the weights between
tokens of a channel are a product of matrices, $W = P (1 + A)^{-1}$, of which $P$ is
what rows read and $A$ what they erase. If one of both is right, the other follows from
$W$, and its wrong entries have a place and a factor as weights have: a rate or a decay
that is missing in the triangular system of a chunk, or where keys read the carried
state. A factor of what a token writes is in both, and is read in the token's own row.
An inverse that is cut short changes $A$ by no factor: outputs of `delta_rule`,
`gated_delta_rule` and `kda` are compared with those of chunks that have such inverses.

**Keys in a state.** Rows of `mesa`, `gsa` and `abc` read the keys of their memory by no
linear rule. Where an output has a place and no factor, the keys in the final state are
compared, each in a channel that no other token has.

**What a target refuses** hides no other fault: where it returns NaN after a log-decay
of -inf, or leaves out the rows behind packed sequences, the maps are measured without
such inputs, and the sentence ends with what it refuses.

**The time.** One clock is for all parts of a diagnosis: 30 seconds or, if that is more,
half of the time that the checks took, up to two minutes, or what a run with `--seconds`
has left. A slow target gets what few calls show; of one that compiles each shape or is
interpreted, what the failed laws ask for is measured first, results of one call, states
or gradients. It begins in a new process. `not
measured` says what was left out, and why, where the cause is not complete; with
`--verbose`, always. `python tools/diagnosis_time.py`
measures the processor time of the diagnoses of kernels in NumPy, one correct kernel of
each operator, of which all parts are measured. The longest of these and of two mutants
that took longest before, in one thread on a machine that others used as well:

| kernel | operator | dtype | seconds of a processor |
|---|---|---|---|
| `powers_of_the_future_overflow` | retention | float32 | 9.4 |
| `levels by tokens` | log_linear_attention | float32 | 8.2 |
| `gated_delta_product by chunks` | gated_delta_product | float32 | 7.7 |
| `oja by tokens` | oja | float32 | 7.1 |
| `kda by chunks` | kda | float32 | 6.7 |
| `rwkv6 by chunks` | rwkv6 | float32 | 6.5 |
| `delta_rule by chunks` | delta_rule | float32 | 6.4 |
| `gated_delta_rule by chunks` | gated_delta_rule | float32 | 5.9 |
| `rwkv4 by tokens` | rwkv4 | float32 | 4.9 |
| `dplr by chunks` | dplr | float32 | 4.9 |

The maps below are in characters, as the terminal shows them; `--html` draws them, the
measured and the exact weights beside their ratio, and `--json` has place and factor as
`diagnosis.where` and `diagnosis.by_what`. For programs, `diagnosis.places` has the same
as statements with their numbers (`{"of": "row", "at_least": 48}`), which hold together,
in one list or in two of which one holds; `diagnosis.factor` has the constant and the
exponents of quantities. The kernels are mutants of [the kill matrix](kill-matrix.md),
which has what is said of every other one.
"""


def page() -> str:
    """Return the page."""
    sections = (section(name, did) for name, did in FAULTS.items())
    return HEAD + "".join(f"\n{section}" for section in sections)


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
