"""The recurrence as one operation of a tape, with its adjoint and the errors of both.

A kernel may form the gradient of a log-decay in two ways: where it acts, ``sum_v D
R``, or as what is left of all later rows, ``sum_{r>=t} (q dq - w dw + a da)``, which
cancels. Both are admitted: the bound is the sum of what either may do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.oracle.balls import Ball, Rounding, contracted, summed_to
from linkern.oracle.enclosures import Arithmetic, Enclosed, Radii, enclosed
from linkern.oracle.recurrence import Terms, reversed_terms, run
from linkern.oracle.tape import Node, Tape
from linkern.oracle.term_errors import row_errors

__all__ = ["scanned"]

Real = NDArray[np.float64]
# What the parents of a scan are in it; the last ones may be missing.
_ROLES = ("query", "key", "value", "log_decay", "state", "erase", "follow")
# Keys that are off by more are not known at all.
_PROVABLE = 0.5


@dataclass(frozen=True)
class _Scan:
    """The rows of one operation and the arithmetic they are done in."""

    terms: Terms
    balls: dict[str, Ball]
    state: Ball
    log_decay: Real
    rounding: Rounding | None
    depth: int
    rows_per_token: int
    off: float = 0.0
    exact: bool = False

    def arithmetic(self, *, backwards: bool) -> Arithmetic:
        assert self.rounding is not None
        depth = self.depth + (self.state.value.shape[-1] if backwards else 0)
        pair = self.terms.follow is not None
        e, within = row_errors(
            *(self.rounding, self.log_decay, depth, self.rows_per_token),
            pair=pair,
            exact=self.exact,
        )
        e, within = (x + self.off * (1 + x) for x in (e, within))
        if backwards and e.shape[-2]:
            e, within = (np.broadcast_to(x[..., -1:, :], x.shape) for x in (e, within))
        return Arithmetic(self.rounding, e, within, self.depth)

    def forwards(self, *, keep: bool) -> Enclosed:
        if self.rounding is None:
            ran = run(self.terms, self.state.value, keep=keep)
            states = None if ran.states is None else Ball(ran.states)
            return Enclosed(Ball(ran.reads), Ball(ran.updates), Ball(ran.last), states)
        radii = Radii(
            query=self.balls["query"].error,
            key=self.balls["key"].error,
            value=self.balls["value"].error,
            log_decay=self.balls["log_decay"].error,
            state=self.state.error,
        )
        arithmetic = self.arithmetic(backwards=False)
        return enclosed(self.terms, self.state.value, radii, arithmetic, keep=keep)

    def backwards(self, reads: Ball, last: Ball) -> Enclosed:
        """Run the adjoint, from the cotangents of reads and of the last memory."""
        terms = reversed_terms(self.terms, reads.value)
        if self.rounding is None:
            ran = run(terms, last.value, keep=True)
            assert ran.states is not None
            return Enclosed(
                Ball(ran.reads), Ball(ran.updates), Ball(ran.last), Ball(ran.states)
            )
        arithmetic = self.arithmetic(backwards=True)
        pairs = terms.length // max(self.terms.length, 1)
        error, within = (
            np.repeat(x, max(pairs, 1), axis=-2)
            for x in (arithmetic.error, arithmetic.within)
        )
        radii = self._reversed_radii(reads, last, pairs)
        arithmetic = replace(arithmetic, error=error, within=within)
        return enclosed(terms, last.value, radii, arithmetic, keep=True)

    def _reversed_radii(self, reads: Ball, last: Ball, pairs: int) -> Radii:
        def spread(radius: Real | None) -> Real | None:
            if radius is None:
                return None
            back = radius[..., ::-1, :]
            if pairs <= 1:
                return back
            paired = np.stack([back, np.zeros_like(back)], axis=-2)
            return paired.reshape(*back.shape[:-2], -1, back.shape[-1])

        query, value = self.balls["query"].error, reads.error
        if self.terms.transpose_state:
            query, value = value, query
        decay = self.balls["log_decay"].error
        if decay is not None:
            nothing = np.zeros_like(decay[..., :1, :])
            decay = np.concatenate([decay[..., 1:, :], nothing], axis=-2)
        return Radii(
            query=spread(self.balls["key"].error),
            key=spread(query),
            value=spread(value),
            log_decay=spread(decay),
            state=last.error,
        )


def scanned(
    tape: Tape,
    *,
    query: Node,
    key: Node,
    value: Node,
    state: Node,
    log_decay: Node | None = None,
    erase: Node | None = None,
    follow: Node | None = None,
    early_erase: bool = False,
    transpose_state: bool = False,
    fresh: NDArray[np.bool_] | None = None,
    depth: int | None = None,
    rows_per_token: int = 1,
    off: float = 0.0,
    exact: bool = False,
    memory: str = "",
) -> tuple[Node, Node]:
    """Run rows on a tape.

    Parameters
    ----------
    tape : Tape
        Where to.
    query, key, value, state, log_decay, erase : Node
        The rows; leading axes broadcast.
    follow : Node, optional
        Share by which the first half of the channels follows the second; then there is
        an erase, and a log-decay for each half.
    early_erase, transpose_state : bool
        As in `Terms`.
    fresh : array (R,), optional
        True where a row begins with an empty memory.
    depth : int, optional
        Over how many channels kernels sum; the number of channels if not given.
    rows_per_token : int
        How many rows one token has.
    off : float
        Bound on the relative errors of the keys, which then stands for their radii: in
        every term there is one key, so it is as good as one more rounding.
    exact : bool
        Whether log-decays of a pair of memories are 0 or -inf.
    memory : str
        The name of the memory, of operators with several.

    Returns
    -------
    Node, Node
        What was read, and the memory after the last row.
    """
    if log_decay is None:
        log_decay = tape.constant(np.zeros((key.shape[-2], 1)))
    parents = [query, key, value, log_decay, state]
    parents += [x for x in (erase, follow) if x is not None]
    roles = _ROLES[: len(parents)]
    parents = [
        tape.part(f"{role} of {memory}" if memory else role, x)
        for role, x in zip(roles, parents, strict=True)
    ]
    lead = np.broadcast_shapes(*(x.shape[:-2] for x in parents))
    balls = {
        name: _spread(x.ball, lead) for name, x in zip(roles, parents, strict=True)
    }
    if 0 < off < _PROVABLE:
        balls["key"] = Ball(balls["key"].value)
    else:
        off = 0.0
    g = balls["log_decay"].value
    if follow is not None:
        g = np.repeat(g, key.shape[-1] // 2, axis=-1)
    factor = np.exp(g)
    if fresh is not None:
        factor = np.where(fresh[:, None], 0.0, factor)
    scan = _Scan(
        Terms(
            balls["query"].value,
            balls["key"].value,
            balls["value"].value,
            factor,
            balls["erase"].value if erase is not None else None,
            early_erase=early_erase,
            transpose_state=transpose_state,
            follow=None if follow is None else balls["follow"].value,
        ),
        balls,
        balls["state"],
        g,
        tape.rounding,
        key.shape[-1] if depth is None else depth,
        rows_per_token,
        off,
        exact,
    )
    for name in ("erase", "follow"):
        if name in balls and balls[name].error is not None:
            msg = f"`{name}` must be exact or a prepared product, got a radius."
            raise ValueError(msg)
    forwards = scan.forwards(keep=False)

    def pullback(cotangents: list[Ball | None]) -> list[Ball | None]:
        results = forwards.reads, forwards.last
        reads, last = (
            Ball(np.zeros_like(result.value)) if ball is None else _spread(ball, lead)
            for ball, result in zip(cotangents, results, strict=True)
        )
        return _adjoint(scan, reads, last, tape.adjoint_reads)

    results = [forwards.reads, forwards.last]
    reads, last = tape.record(results, parents, pullback, roles)
    return reads, last


def _spread(ball: Ball, lead: tuple[int, ...]) -> Ball:
    shape = (*lead, *ball.value.shape[-2:])
    error = None if ball.error is None else np.broadcast_to(ball.error, shape)
    return Ball(np.broadcast_to(ball.value, shape), error)


def _adjoint(
    scan: _Scan, reads: Ball, last: Ball, other: Mapping[str, str]
) -> list[Ball | None]:
    """Return cotangents of query, key, value, log-decay, state, erase and follow.

    `other` says for some operands which memory is read in place of the right one.
    """
    terms, rounding = scan.terms, scan.rounding
    if not terms.length:
        none: list[Ball | None] = [None, None, None, None, last]
        return none + [None for x in (terms.erase, terms.follow) if x is not None]
    forwards, backwards = scan.forwards(keep=True), scan.backwards(reads, last)
    assert forwards.states is not None
    assert backwards.states is not None
    pairs = 1 if terms.erase is None else 2
    after = _picked(backwards.states, 0, pairs, axis=-3)
    below = _picked(backwards.states, pairs - 1, pairs, axis=-3)
    value = _picked(backwards.reads, 0, pairs, axis=-2)

    def over_values(x: Ball, y: Ball) -> Ball:
        return contracted("...tkv,...tv->...tk", x, y, rounding)

    key = over_values(after, forwards.updates)
    before = _before(scan.state, forwards.states)
    decayed = _scaled(before, terms.factor, scan)
    memories = {"before": before, "decayed": decayed, "after": forwards.states}
    if "token" in other.values():
        memories["token"] = _after_tokens(forwards.states, scan.rows_per_token)
    spec = "...tkv,...tk->...tv" if terms.transpose_state else "...tkv,...tv->...tk"
    query = contracted(spec, memories[other.get("query", "after")], reads, rounding)
    erase = None
    if terms.erase is not None:
        source = "before" if terms.early_erase else "decayed"
        taken = over_values(memories[other.get("erase", source)], value)
        erase = Ball(-taken.value, taken.error)
        if rounding is not None:
            key, erase = _through_inverse(scan, forwards, backwards, key, erase)
    follow = None
    if terms.follow is not None:
        follow = _shares(scan, forwards, backwards, after)
    decays = after if terms.early_erase else below
    kept = memories[other.get("log_decay", "decayed")]
    log_decay = contracted("...tkv,...tkv->...tk", decays, kept, rounding)
    if rounding is not None:
        touched = [(terms.key, key), (terms.query, query)]
        if terms.transpose_state:
            touched[1] = (reads.value, forwards.reads)
        if terms.erase is not None and erase is not None:
            touched.append((terms.erase, erase))
        if terms.follow is not None and follow is not None:
            touched.append((terms.follow, follow))
        end = contracted("...kv,...kv->...k", last, forwards.last, rounding)
        log_decay = _cancelled(log_decay, touched, end, rounding, scan.off)
    if scan.log_decay.shape[-1] == 1:
        shape = (*log_decay.value.shape[:-1], 1)
        log_decay = summed_to(log_decay, shape, rounding)
    if follow is not None:
        log_decay = _of_halves(log_decay, rounding)
    state = _initial(scan, backwards)
    results: list[Ball | None] = [query, key, value, log_decay, state]
    return results + [x for x in (erase, follow) if x is not None]


def _shares(scan: _Scan, forwards: Enclosed, backwards: Enclosed, after: Ball) -> Ball:
    """Return the cotangent of the shares: that of the first half times the second.

    Kernels may form it from the cotangents of the weights of pairs, whose sums are as
    large as the gauges of both.
    """
    assert forwards.states is not None
    half = scan.state.value.shape[-2] // 2
    first, second = np.s_[..., :half, :], np.s_[..., half:, :]

    def part(x: Ball, index: Any) -> Ball:
        return Ball(x.value[index], None if x.error is None else x.error[index])

    led = contracted(
        "...tkv,...tkv->...t",
        part(after, first),
        part(forwards.states, second),
        scan.rounding,
    )
    error = led.error
    if error is not None and forwards.held is not None and backwards.held is not None:
        e = scan.arithmetic(backwards=True).error[..., 0]
        adjoint = backwards.held[1][..., ::2, :, :][..., ::-1, :, :]
        held = adjoint[first], forwards.held[1][second]
        error = error + e * np.einsum("...tkv,...tkv->...t", *held)
    return Ball(led.value[..., None], None if error is None else error[..., None])


def _of_halves(ball: Ball, rounding: Rounding | None) -> Ball:
    """Return the sums over both halves of the channels, side by side."""
    *lead, size = ball.value.shape

    def apart(x: Real) -> Real:
        return x.reshape(*lead, 2, size // 2)

    halves = Ball(apart(ball.value), None if ball.error is None else apart(ball.error))
    both = summed_to(halves, (*lead, 2, 1), rounding)
    return Ball(both.value[..., 0], None if both.error is None else both.error[..., 0])


def _through_inverse(
    scan: _Scan, forwards: Enclosed, backwards: Enclosed, key: Ball, erase: Ball
) -> tuple[Ball, Ball]:
    """Admit what kernels lose that differentiate an explicit inverse.

    They form ``dN = -X^T dX X^T``, whose sums are as large as ``Y_b Y^T`` with the
    magnitudes that `Enclosed` calls held, and not as ``du u^T``.
    """
    if forwards.held is None or backwards.held is None:
        return key, erase
    (y, states), (back, back_states) = forwards.held, backwards.held
    e = scan.arithmetic(backwards=True).error
    adjoint = back_states[..., ::2, :, :][..., ::-1, :, :]
    of_key = e * np.einsum("...tkv,...tv->...tk", adjoint, y)
    first = abs(scan.state.value)[..., None, :, :]
    before = np.concatenate([first, states[..., :-1, :, :]], axis=-3)
    if not scan.terms.early_erase:
        before = scan.terms.factor[..., None] * before
    later = back[..., 1::2, :][..., ::-1, :]
    of_erase = e * np.einsum("...tkv,...tv->...tk", before, later)
    return (
        Ball(key.value, key.radius + of_key),
        Ball(erase.value, erase.radius + of_erase),
    )


def _initial(scan: _Scan, backwards: Enclosed) -> Ball:
    """Return the cotangent of the memory before the first row."""
    if scan.terms.early_erase:
        return backwards.last
    last, first = backwards.last, scan.terms.factor[..., 0, :, None]
    if last.error is None or scan.rounding is None:
        return Ball(first * last.value)
    wide, log_error = first, scan.balls["log_decay"].error
    if log_error is not None:
        wide = first * np.exp(log_error[..., 0, :, None])
    e = scan.arithmetic(backwards=True).error[..., -1:, :]
    error = (1 + e) * wide * last.reach - first * abs(last.value)
    error = error + scan.rounding.tiny * (2 + last.reach)
    return Ball(first * last.value, np.where(wide > 0, error, 0.0))


def _cancelled(
    exact: Ball,
    touched: list[tuple[Real, Ball]],
    end: Ball,
    rounding: Rounding,
    off: float,
) -> Ball:
    """Add what the sum over all later rows may be off by."""
    later = np.zeros_like(exact.value)
    size = np.zeros_like(exact.value)
    for x, gradient in touched:
        later = later + abs(x) * gradient.radius
        size = size + abs(x) * gradient.reach
    total, reach = (
        np.cumsum(x[..., ::-1, :], axis=-2)[..., ::-1, :] + y[..., None, :]
        for x, y in ((later, end.radius), (size, end.reach))
    )
    length = exact.value.shape[-2]
    growth = rounding.grown(3 * length + exact.value.shape[-1] + 8)
    growth = growth + off * (1 + growth)
    return Ball(exact.value, exact.radius + total + growth * reach)


def _picked(ball: Ball, first: int, step: int, *, axis: int) -> Ball:
    """Return every `step`-th row of a backward run, in the order of tokens."""

    def pick(x: Real) -> Real:
        x = np.moveaxis(x, axis, 0)[first::step][::-1]
        return np.moveaxis(x, 0, axis)

    return Ball(pick(ball.value), None if ball.error is None else pick(ball.error))


def _after_tokens(states: Ball, rows_per_token: int) -> Ball:
    """Return, for every row, the memory after the last row of its token."""
    row = np.arange(states.value.shape[-3])
    last = row // rows_per_token * rows_per_token + rows_per_token - 1
    error = None if states.error is None else states.error.take(last, axis=-3)
    return Ball(states.value.take(last, axis=-3), error)


def _before(state: Ball, states: Ball) -> Ball:
    """Return the memory before every row."""

    def shifted(first: Real, rest: Real) -> Real:
        return np.concatenate([first[..., None, :, :], rest[..., :-1, :, :]], axis=-3)

    value = shifted(state.value, states.value)
    if states.error is None:
        return Ball(value)
    return Ball(value, shifted(state.radius, states.error))


def _scaled(before: Ball, factor: Real, scan: _Scan) -> Ball:
    """Return the memory times the factors of rows, in as many roundings as after it.

    An error of a memory is ``e_{t-1}`` times its gauge, and that of a decayed one
    ``e_t`` times it.
    """
    factor = factor[..., None]
    value = factor * before.value
    if before.error is None or scan.rounding is None:
        return Ball(value)
    e = scan.arithmetic(backwards=False).error
    ratio = np.ones_like(e)
    ratio[..., 1:, :] = e[..., 1:, :] / e[..., :-1, :]
    wide, log_error = factor, scan.balls["log_decay"].error
    if log_error is not None:
        wide = factor * np.exp(log_error)[..., None]
    reach = abs(before.value) * (1 + e[..., None])
    reach = reach + before.error * np.maximum(ratio, 1)[..., None]
    error = wide * reach - factor * abs(before.value)
    error = error + scan.rounding.tiny * (2 + reach)
    return Ball(value, np.where(wide > 0, error, 0.0))
