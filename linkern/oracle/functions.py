"""Operations on a tape besides sums of products: softmax, sigmoid, log-sums, a solve.

The forward errors are those of the textbook evaluation, with a few units in the last
place for each exponential and logarithm; adjoints are computed in ball arithmetic.
"""

import numpy as np
from numpy.typing import NDArray

from linkern.oracle.balls import Ball, Rounding, added, contracted
from linkern.oracle.tape import Node, Tape

__all__ = ["log_sums", "sigmoid", "softmax", "solved"]

Real = NDArray[np.float64]

# Roundings that one exponential or logarithm is admitted.
_ULPS = 8


def softmax(tape: Tape, x: Node) -> Node:
    """Return ``exp(x) / sum exp(x)`` over the last axis."""
    shifted = x.value - x.value.max(axis=-1, keepdims=True)
    p = np.exp(shifted)
    p = p / p.sum(axis=-1, keepdims=True)
    error = None
    if tape.rounding is not None:
        spread = abs(shifted).max(axis=-1, keepdims=True)
        moved = x.ball.radius.max(axis=-1, keepdims=True)
        unit = tape.rounding.unit
        exponent = 2 * (moved + unit * (spread + moved)) + unit * _ULPS
        exponent = exponent + tape.rounding.grown(x.shape[-1] + 4)
        error = p * np.expm1(exponent) + tape.rounding.tiny * (1 + x.shape[-1])
        # However wrong the scores are, a weight lies between 0 and 1; 0 times infinity
        # says nothing.
        error = np.fmin(error, 1 + tape.rounding.grown(x.shape[-1] + 4))
    result = Ball(p, error)

    def pullback(cotangents: list[Ball | None]) -> list[Ball | None]:
        (g,) = cotangents
        assert g is not None
        mean = contracted("...m,...m->...", g, result, tape.rounding)
        away = Ball(
            -mean.value[..., None],
            None if mean.error is None else mean.error[..., None],
        )
        # Each way back by itself: errors are those of the difference, which is smaller.
        if tape.rounding is None:
            parts = (contracted("...,...->...", result, y, None) for y in (g, away))
            return [*parts]
        centred = added(g, away, tape.rounding)
        return [contracted("...,...->...", result, centred, tape.rounding), None]

    return tape.record([result], [x, x], pullback, ("numerator", "denominator"))[0]


def sigmoid(tape: Tape, x: Node, *, sign: float = 1.0) -> Node:
    """Return ``1 / (1 + exp(-sign x))`` for rows of tokens ``(..., T, C)``.

    Its slope is a share times what is left of one, and kernels that divide sums by sums
    subtract to get there: `_left_over` admits it.
    """
    share, rest = _sigmoid(sign * x.value), _sigmoid(-sign * x.value)
    error = other = None
    if tape.rounding is not None:
        few = _ULPS * tape.rounding.unit
        error, other = (
            p * np.expm1(x.ball.radius + few) + tape.rounding.tiny
            for p in (share, rest)
        )
        other = other + _left_over(tape.rounding, x.shape[-2])
    result, opposite = Ball(share, error), Ball(sign * rest, other)

    def pullback(cotangents: list[Ball | None]) -> list[Ball]:
        (g,) = cotangents
        assert g is not None
        slope = contracted("...,...->...", result, opposite, tape.rounding)
        return [contracted("...,...->...", g, slope, tape.rounding)]

    return tape.record([result], [x], pullback)[0]


def _left_over(rounding: Rounding, length: int) -> float:
    """Return the error of ``1 - p`` where both are quotients of sums over tokens."""
    return float(rounding.grown(2 * length + 16))


def _sigmoid(x: Real) -> Real:
    small = np.exp(-abs(x))
    return np.asarray(np.where(x >= 0, 1.0, small) / (1 + small))


def log_sums(
    tape: Tape, log_decay: Node, logit: Node, start: Node
) -> tuple[Node, Node, Node, Node]:
    r"""Return the running ``z_t = log(exp(z_{t-1} + g_t) + exp(l_t))``, and its parts.

    With ``d_t = l_t - (z_{t-1} + g_t)``, a mean weighted by ``exp(l)`` keeps ``1 -
    sigmoid(d_t)`` of itself and takes ``sigmoid(d_t)`` of what is new.

    The weight of token s at token t is the product of its share and of what later
    tokens keep, ``exp(l_s - z_t)``: the errors of the sums between them cancel. So what
    a token keeps is admitted the error that the token adds to ``z``, and a share the
    error of ``z`` itself; neither says how far a single factor can be off.

    Parameters
    ----------
    tape : Tape
        Where to.
    log_decay, logit : Node (..., T, C)
        ``g`` and ``l``.
    start : Node (..., C)
        ``z`` before the first token; -inf for an empty sum.

    Returns
    -------
    Node, Node, Node, Node
        ``log(1 - sigmoid(d))``, ``sigmoid(d)``, ``z_{t-1}`` and the last ``z``.
    """
    lead = np.broadcast_shapes(log_decay.shape, logit.shape, (*start.shape[:-1], 1, 1))
    g, logits = (np.broadcast_to(x.value, lead) for x in (log_decay, logit))
    errors = tuple(np.broadcast_to(x.ball.radius, lead) for x in (log_decay, logit))
    z = np.broadcast_to(start.value, (*lead[:-2], lead[-1]))
    ez = np.broadcast_to(start.ball.radius, z.shape)
    rows: list[tuple[Real, ...]] = []
    for t in range(lead[-2]):
        carried = z + g[..., t, :]
        kept = np.where(np.isneginf(carried), 0.0, carried)
        d = np.where(np.isneginf(carried), np.inf, logits[..., t, :] - kept)
        share = _sigmoid(d)
        log_keep = -np.maximum(d, 0) - np.log1p(np.exp(-abs(d)))
        following = np.logaddexp(carried, logits[..., t, :])
        ed, e_following = np.zeros_like(z), np.zeros_like(z)
        if tape.rounding is not None:
            unit = _ULPS * tape.rounding.unit
            size = abs(kept) + abs(logits[..., t, :])
            ed = ez + errors[0][..., t, :] + errors[1][..., t, :] + unit * (1 + size)
            e_following = ed + unit * (1 + abs(following))
        rows.append((log_keep, share, z, ed, e_following - ez))
        z, ez = following, e_following
    stacked = [np.stack(x, axis=-2) for x in zip(*rows, strict=True)]
    if not rows:
        stacked = [np.empty(lead)] * 5
    return _recorded_sums(tape, (log_decay, logit, start), stacked, Ball(z, ez))


def _recorded_sums(
    tape: Tape, parents: tuple[Node, Node, Node], rows: list[Real], end: Ball
) -> tuple[Node, Node, Node, Node]:
    log_keep, share, before, ed, added_error = rows
    rounding = tape.rounding
    if rounding is None:
        balls = [Ball(log_keep), Ball(share), Ball(before), Ball(end.value)]
    else:
        unit = _ULPS * rounding.unit
        certain = np.isneginf(log_keep)
        near = np.where(certain, 0.0, added_error + unit * (1 + abs(log_keep)))
        of_share = share * np.expm1(ed + unit) + rounding.tiny
        balls = [
            Ball(log_keep, near),
            Ball(share, np.where(certain, unit, of_share)),
            Ball(before, np.where(np.isneginf(before), 0.0, ed)),
            end,
        ]
    kept = Ball(np.exp(log_keep))
    if rounding is not None:
        of_kept = kept.value * np.expm1(ed + _ULPS * rounding.unit) + rounding.tiny
        subtracted = _left_over(rounding, log_keep.shape[-2])
        kept = Ball(kept.value, np.where(kept.value > 0, of_kept, 0.0) + subtracted)

    def pullback(cotangents: list[Ball | None]) -> list[Ball | None]:
        full = [
            Ball(np.zeros_like(source.value)) if g is None else g
            for g, source in zip(cotangents, balls, strict=True)
        ]
        of_decay, of_logit, of_start = _sums_adjoint(full, balls[1], kept, rounding)
        if rounding is not None:
            return [of_decay, of_logit, of_start, None]
        # What comes back to a logit through its own weight, and through the sums.
        by_weight = contracted("...,...->...", full[1], balls[1], None)
        by_sums = added(of_logit, Ball(-by_weight.value), None)
        return [of_decay, by_weight, of_start, by_sums]

    roles = ("", "", "", "sums")
    first, second, third, last = tape.record(
        balls, (*parents, parents[1]), pullback, roles
    )
    return first, second, third, last


def _sums_adjoint(
    cotangents: list[Ball], share: Ball, kept: Ball, rounding: Rounding | None
) -> list[Ball]:
    """Return cotangents of decay, logit and start."""
    of_keep, of_share, of_before, after = cotangents

    def times(x: Ball, y: Ball) -> Ball:
        return contracted("...,...->...", x, y, rounding)

    through_share = times(of_share, times(share, kept))
    through_keep = times(of_keep, share)
    slopes = added(
        through_share, Ball(-through_keep.value, through_keep.error), rounding
    )
    decays: list[Ball] = []
    logits: list[Ball] = []
    for t in reversed(range(share.value.shape[-2])):
        d, s, k = (_row(x, t) for x in (slopes, share, kept))
        logits.append(added(times(after, s), d, rounding))
        opposite = Ball(-d.value, d.error)
        decays.append(added(times(after, k), opposite, rounding))
        after = added(decays[-1], _row(of_before, t), rounding)
    if not decays:
        return [of_keep, of_keep, after]
    return [_stacked(decays[::-1]), _stacked(logits[::-1]), after]


def _row(x: Ball, t: int) -> Ball:
    return Ball(x.value[..., t, :], None if x.error is None else x.error[..., t, :])


def _stacked(balls: list[Ball]) -> Ball:
    value = np.stack([x.value for x in balls], axis=-2)
    if all(x.error is None for x in balls):
        return Ball(value)
    return Ball(value, np.stack([x.radius for x in balls], axis=-2))


def solved(tape: Tape, matrix: Node, right: Node) -> Node:
    r"""Return ``M^{-1} b`` for symmetric positive definite matrices.

    A direct method solves ``(M + dM) x = b`` with ``|dM_ij| <= gamma sqrt(m_ii m_jj)``
    (Higham, section 10.1), here with ``3 K^2`` operations, which leaves room for an
    explicit inverse and for pivots. Iterations that stop early are not covered.
    """
    rounding = tape.rounding
    x = _direct(matrix.value, right.value)
    result = Ball(x)
    if rounding is not None:
        result = Ball(x, _solve_error(matrix.ball, right.ball, x, rounding))

    def pullback(cotangents: list[Ball | None]) -> list[Ball]:
        (g,) = cotangents
        assert g is not None
        y = _direct(np.swapaxes(matrix.value, -1, -2), g.value)
        adjoint = Ball(y)
        if rounding is not None:
            adjoint = Ball(y, _solve_error(matrix.ball, g, y, rounding))
        away = Ball(-adjoint.value, adjoint.error)
        return [contracted("...k,...l->...kl", away, result, rounding), adjoint]

    return tape.record([result], [matrix, right], pullback)[0]


def _direct(matrix: Real, right: Real) -> Real:
    solution = np.linalg.solve(matrix, right[..., None])[..., 0]
    return np.asarray(solution, dtype=np.float64)


def _solve_error(matrix: Ball, right: Ball, x: Real, rounding: Rounding) -> Real:
    k = x.shape[-1]
    inverse = abs(np.linalg.inv(matrix.value))
    root = np.sqrt(abs(np.diagonal(matrix.value, axis1=-2, axis2=-1)))
    moved = rounding.grown(3 * k * k + 8) * root[..., :, None] * root[..., None, :]
    moved = moved + matrix.radius
    # An explicit inverse is as large as this, before it meets the right-hand side.
    reach = (inverse @ right.reach[..., None])[..., 0]
    amplified = inverse @ moved
    contraction = amplified.sum(axis=-1).max(axis=-1, initial=0.0)[..., None]
    first = inverse @ (moved @ reach[..., None] + right.radius[..., None])
    largest = first[..., 0].max(axis=-1, keepdims=True, initial=0.0)
    grown = first[..., 0] + contraction / (1 - contraction) * largest
    return np.where(contraction < 0.5, grown, np.inf)
