"""Trial of a candidate: what it returned while it was timed, judged by proved bounds.

The inputs of every timed call are drawn and changed here once more, and the oracle says
what their exact output is: of the first tokens with the bound that `linkern verify`
proves, of some later ones with the reference that all contestants are compared with.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from linkern.bench.candidates import NAMES, OP, REACH, Kept, edited, edits, kept_rows
from linkern.bench.peers import Peer
from linkern.bench.reference import ALLOWED, answers, largest_error
from linkern.bench.tasks import Inputs, Task, drawn
from linkern.testing.checks.assertions import compared
from linkern.testing.checks.values import CONFIDENCE
from linkern.testing.problems import expected
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import OPERATORS

__all__ = ["fault"]

# Calls of a run: more than any has.
MOST_EDITS = 10**6
# Outputs that are judged of all that were kept, the last one among them.
MOST = 8


def fault(
    peer: Peer,
    task: Task,
    length: int,
    seed: int,
    kept: Sequence[Kept],
    again: Callable[[int], Sequence[Kept]],
) -> str:
    """Return what a candidate did wrong while it was timed; empty if nothing.

    Parameters
    ----------
    peer, task, length, seed : Peer, Task, int, int
        The candidate, and what its first inputs were drawn from.
    kept : sequence of Kept
        Parts of the outputs of timed calls, in their order.
    again : callable
        From a seed to what two more calls return on new inputs.
    """
    counts = [0, *(part.edits for part in kept), MOST_EDITS]
    if not kept or counts != sorted(counts):
        return "wrong: its process reported an impossible number of calls"
    inputs = _Changed(task, length, seed, peer.options["seed"])
    for i in np.unique(np.linspace(0, len(kept) - 1, MOST).astype(int)):
        what = _deviation(inputs.after(kept[i].edits), task, length, kept[i])
        if what:
            return f"wrong: timed call on inputs changed {kept[i].edits} times {what}"
    fresh = secrets.randbits(31)
    pair = again(fresh)
    if len(pair) != 2:
        return f"wrong: its process reported {len(pair)} calls instead of two"
    one, other = pair
    if not np.array_equal(one.output, other.output, equal_nan=True):
        return "wrong: two calls with the same inputs gave different outputs"
    what = _deviation(drawn(task, length, fresh), task, length, other)
    return f"wrong: a call on new inputs, after the timed ones, {what}" if what else ""


class _Changed:
    """The inputs of a candidate after some of its edits; their number only grows."""

    def __init__(self, task: Task, length: int, seed: int, of_edits: int) -> None:
        drawn_first = drawn(task, length, seed)
        self._inputs = replace(
            drawn_first, **{name: getattr(drawn_first, name).copy() for name in NAMES}
        )
        self._edits, self._count = edits(task, length, of_edits), 0

    def after(self, count: int) -> Inputs:
        """Return the inputs after so many edits."""
        while self._count < count:
            edit = next(self._edits)
            x = getattr(self._inputs, edit.name)
            x[edit.index] = edited(x[edit.index])
            self._count += 1
        return self._inputs


def _deviation(inputs: Inputs, task: Task, length: int, kept: Kept) -> str:
    """Return how a part of an output is wrong; empty if it is not."""
    rows, near = kept_rows(length), min(length, REACH)
    heads = [*np.ndindex(task.batch, task.heads)]
    if kept.output.shape != (len(rows), task.dim) or tuple(kept.head) not in heads:
        return f"returned a part of shape {kept.output.shape} of head {kept.head}"
    at = tuple(slice(i, i + 1) for i in kept.head)
    one = Inputs(inputs.query[at], inputs.key[at], inputs.value[at], _NOTHING)
    first = {name: getattr(one, name)[:, :, :near] for name in NAMES}
    call = expected.OracleCall(OPERATORS[OP], Contract(), task.dtype, first)
    got = kept.output[None, None].astype(np.float64)
    seen = compared(got[:, :, :near], expected.output(call, CONFIDENCE), task.dtype)
    if not seen.fine.all():
        token = int(np.argwhere(~seen.fine)[0][2])
        return f"is out of the proved bound from token {token} on"
    later = rows[near:]
    if later:
        exact = answers(one, "causal", "attention", later)
        error = largest_error([got[:, :, near:]], exact)
        if not error <= ALLOWED[task.dtype]:
            return f"is off by {error:.2g} beyond token {near}"
    return ""


_NOTHING = np.zeros((1, 1, 0, 0))
