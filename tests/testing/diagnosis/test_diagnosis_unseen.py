"""Causes are named of kernels nobody planted, and their parameters measured."""

from dataclasses import replace

import numpy as np
import pytest

from linkern.testing.diagnosis.diagnose import diagnose
from linkern.testing.diagnosis.hypotheses.measuring import decimals, spelt
from linkern.testing.kernels.assembly import (
    Parts,
    all_tokens,
    assemble,
    elu_plus_one,
)
from linkern.testing.problems.problem import Scope
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import OPERATORS
from linkern.testing.target.process import InProcess
from linkern.testing.target.protocol import TargetConfig
from tests.marks import every


def part(**replaced):
    return assemble(replace(Parts(), **replaced))


def wide(*arrays):
    return [x.astype(np.result_type(x.dtype, np.float32)) for x in arrays]


def dense(
    weights=np.tril,
    of_divisor=None,
    query_map=elu_plus_one,
    key_map=elu_plus_one,
    divide=lambda n, d: n / d,
    arrange=lambda q, k, v: (q, k, v),
    finish=lambda o: o,
):
    """Return quadratic linear attention with one part replaced."""

    def kernel(query, key, value):
        with np.errstate(all="ignore"):
            q, k, v = arrange(*wide(query, key, value))
            scores = query_map(q) @ np.swapaxes(key_map(k), -1, -2)
            counted = weights(scores)
            divisor = (of_divisor or weights)(scores).sum(-1, keepdims=True)
            return finish(divide(counted @ v, divisor)).astype(query.dtype)

    return kernel


def token(which, times):
    """Count the token at one place of every full chunk otherwise."""

    def written(first, length, chunk):
        weights = all_tokens(first, length, chunk)
        if length == chunk:
            weights[which] = times
        return weights

    return written


def positions(scores):
    return np.arange(scores.shape[-2])[:, None], np.arange(scores.shape[-1])


def decayed(factor):
    def weights(scores):
        i, j = positions(scores)
        powers = np.asarray(factor, scores.dtype) ** np.maximum(i - j, 0)
        return np.tril(scores) * powers.astype(scores.dtype)

    return weights


def window(width):
    def weights(scores):
        i, j = positions(scores)
        return np.tril(scores) * (i - j < width)

    return weights


def block_mask(chunk):
    def weights(scores):
        i, j = positions(scores)
        return scores * (j // chunk <= i // chunk)

    return weights


def states(keep, chunk):
    """Keep pairs by how many chunks the key is behind the query."""

    def weights(scores):
        i, j = positions(scores)
        return np.tril(scores) * keep(i // chunk - j // chunk)

    return weights


def rounded(bits):
    def to(x):
        mantissa, exponent = np.frexp(x)
        return np.ldexp(np.round(np.ldexp(mantissa, bits)), exponent - bits).astype(
            x.dtype
        )

    return to


def relu(x):
    return np.maximum(x, 0)


def elu(x):
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def softmax(x):
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def rows(value, chunk):
    def finish(output):
        start = output.shape[-2] // chunk * chunk
        if start:
            output[..., start:, :] = value
        return output

    return finish


def first_row(value):
    def finish(output):
        output[..., :1, :] = value
        return output

    return finish


def padded(chunk):
    right = dense()

    def kernel(query, key, value):
        missing = -key.shape[-2] % chunk
        pad = [(0, 0)] * (key.ndim - 2) + [(missing, 0), (0, 0)]
        return right(*(np.pad(x, pad) for x in (query, key, value)))[..., missing:, :]

    return kernel


def swapped_axes(kernel):
    def swapped(query, key, value):
        output = kernel(*(np.swapaxes(x, 1, 2) for x in (query, key, value)))
        return np.swapaxes(output, 1, 2)

    return swapped


def roll_heads(q, k, v):
    return q, np.roll(k, -1, axis=1), np.roll(v, -1, axis=1)


def half(x):
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(x.dtype)


def plus(eps):
    return lambda n, d: n / (d + np.asarray(eps, d.dtype))


def at_least(eps):
    return lambda n, d: n / np.maximum(d, np.asarray(eps, d.dtype))


# Kernel, the name of the diagnosis, and what its sentence must say.
CAUSAL = {
    "eps 3.7e-5": (dense(divide=plus(3.7e-5)), "eps", "`eps=3.7e-5`"),
    "eps 2e-8": (part(divide=plus(2e-8), chunk=64), "eps", "`eps=2e-8`"),
    "eps 0.25": (dense(divide=plus(0.25)), "eps", "`eps=0.25`"),
    "clamp 0.5": (dense(divide=at_least(0.5)), "clamp", "at least 0.5"),
    "clamp 1e-6": (dense(divide=at_least(1e-6)), "clamp", "at least 1e-6"),
    "eps in features": (
        dense(
            query_map=lambda x: elu_plus_one(x) + x.dtype.type(1e-3),
            key_map=lambda x: elu_plus_one(x) + x.dtype.type(1e-3),
        ),
        "eps_in_features",
        "`eps=0.001`",
    ),
    "edge of 48": (
        part(chunk=48, written=token(-1, 0)),
        "key_lost_at_chunk_edge",
        "the last key of every chunk of 48 lost",
    ),
    "first of 20": (
        part(chunk=20, written=token(0, 0)),
        "key_lost_at_chunk_edge",
        "the first key of every chunk of 20 lost",
    ),
    "twice in 100": (
        part(chunk=100, written=all_tokens, weighed=token(-1, 2)),
        "key_counted_twice_at_chunk_edge_denominator",
        "every chunk of 100 counted twice from the denominator",
    ),
    "decay 0.997": (dense(weights=decayed(0.997)), "decay", "0.997 per token"),
    "decay 0.9": (
        dense(weights=decayed(0.9), of_divisor=np.tril),
        "decay",
        "of the numerator by 0.9 per token",
    ),
    "window 33": (dense(weights=window(33)), "window", "after 33 tokens"),
    "no mask": (dense(weights=lambda s: s), "no_mask", "not masked"),
    "blocks of 32": (dense(weights=block_mask(32)), "block_mask", "chunks of 32"),
    "state late": (
        dense(weights=states(lambda n: n != 1, 24)),
        "state_read_late",
        "chunks of 24",
    ),
    "state overwritten": (
        dense(weights=states(lambda n: n < 2, 32)),
        "state_overwritten",
        "chunks of 32",
    ),
    "no state": (
        dense(weights=states(lambda n: n < 1, 64)),
        "state_not_carried",
        "chunks of 64",
    ),
    "not normalised": (
        dense(divide=lambda n, d: n),
        "not_normalised",
        "not normalised",
    ),
    "average": (
        dense(
            divide=lambda n, d: (
                n / np.arange(1, n.shape[-2] + 1, dtype=n.dtype)[:, None]
            )
        ),
        "not_normalised",
        "divided by the number of keys",
    ),
    "doubled": (dense(finish=lambda o: 2 * o), "output_scaled", "times 2"),
    "negated": (dense(finish=lambda o: -o), "output_scaled", "times -1"),
    "relu": (dense(query_map=relu, key_map=relu), "feature_map", "`relu`"),
    "elu": (dense(key_map=elu), "feature_map", "`elu` on the keys"),
    "no map": (
        dense(query_map=lambda x: x),
        "feature_map",
        "no feature map on the queries",
    ),
    "softmax": (
        dense(key_map=softmax),
        "feature_map",
        "`softmax` on the keys",
    ),
    "swapped": (
        dense(arrange=lambda q, k, v: (k, q, v)),
        "query_key_swapped",
        "swapped",
    ),
    "layout": (swapped_axes(dense()), "layout_swapped", "heads and time swapped"),
    "next head": (dense(arrange=roll_heads), "keys_mixed", "the next head"),
    "late rows": (
        dense(finish=lambda o: np.concatenate([o[..., :1, :], o[..., :-1, :]], -2)),
        "rows_late",
        "one late",
    ),
    "first row NaN": (
        part(finish=first_row(np.nan)),
        "first_row_not_written",
        "a first row that is not finite",
    ),
    "tail NaN": (part(finish=rows(np.nan, 32)), "tail_not_written", "chunk of 32"),
    "last row": (
        dense(
            finish=lambda o: np.concatenate([o[..., :-1, :], 0 * o[..., -1:, :]], -2)
        ),
        "last_row_not_written",
        "zero",
    ),
    "padding to 64": (padded(64), "padding_counted", "chunks of 64"),
    "float16 state": (
        part(chunk=64, carried=half),
        "state_rounded",
        "rounded to float16 after every 64 tokens",
    ),
    "bfloat16 operands": (
        part(operand=rounded(8)),
        "operands_rounded",
        "rounded to bfloat16",
    ),
    "10-bit reciprocal": (
        part(divide=lambda n, d: n * rounded(10)(1 / d)),
        "coarse_reciprocal",
        "rounded to 10 bits",
    ),
    "float16 output": (dense(finish=half), "output_rounded", "rounded to float16"),
    "small values": (
        dense(arrange=lambda q, k, v: (q, k, np.where(abs(v) < 0.05, 0, v))),
        "small_values_as_zero",
        "below 0.05",
    ),
}


def noncausal(**parts):
    return dense(**{"weights": lambda s: s} | parts)


def without(lost):
    """Leave out keys; ``lost(position, count)`` says which."""

    def weights(scores):
        j = np.arange(scores.shape[-1])
        return scores * ~lost(j, scores.shape[-1])

    return weights


NONCAUSAL = {
    "causal": (noncausal(weights=np.tril), "causal_mask", "causal mask"),
    "causal normalizer": (
        noncausal(of_divisor=np.tril),
        "causal_normalizer",
        "keys so far",
    ),
    "last key": (
        noncausal(weights=without(lambda j, n: j == n - 1)),
        "last_key_lost",
        "the last key lost",
    ),
    "tail of 16": (
        noncausal(weights=without(lambda j, n: j >= n // 16 * 16)),
        "tail_keys_lost",
        "chunk of 16",
    ),
    "edge of 24": (
        noncausal(weights=without(lambda j, n: (j + 1) % 24 == 0)),
        "key_lost_at_chunk_edge",
        "chunk of 24",
    ),
    "eps": (noncausal(divide=plus(1e-5)), "eps", "`eps=1e-5`"),
}


def named(kernel, operator="linear_attention", **declared):
    contract = Contract(**declared)
    config = TargetConfig("test", layout=contract.layout, op=operator)
    target = InProcess(config, kernel)
    scope = Scope(OPERATORS[operator], contract, "float32", interface=target.interface)
    return diagnose(target, scope)


@pytest.mark.parametrize("case", every(4, CAUSAL))
def test_parameters_of_unseen_kernels_are_measured(case):
    kernel, name, says = CAUSAL[case]
    found = named(kernel)
    assert found is not None
    assert found.name == name
    assert says in found.sentence
    assert found.ratio <= 1


@pytest.mark.parametrize("case", NONCAUSAL)
def test_unseen_kernels_without_a_mask_are_named(case):
    kernel, name, says = NONCAUSAL[case]
    found = named(kernel, operator="linear_attention_noncausal", equal_lengths=True)
    assert found is not None
    assert found.name == name
    assert says in found.sentence


@pytest.mark.parametrize("feature_map", ["elu_plus_one", "identity"])
def test_more_keys_than_queries_are_no_hindrance(feature_map):
    def features(x):
        return elu_plus_one(x) if feature_map == "elu_plus_one" else x

    kernel = dense(lambda s: s, query_map=features, key_map=features, divide=plus(1e-3))
    operator = "linear_attention_noncausal"
    found = named(kernel, operator=operator, feature_map=feature_map)
    assert "`eps=0.001` added to the denominator" in found.sentence


def test_two_defects_at_once_have_no_name():
    kernel = part(written=token(-1, 0), divide=plus(1e-3))
    assert named(kernel) is None


def test_what_is_declared_is_no_cause():
    kernel = dense(divide=plus(1e-6))
    assert named(kernel, eps=1e-6) is None
    assert named(dense(), eps=1e-6).name == "eps_missing"


def test_sentence():
    found = named(dense(divide=plus(1e-6)))
    assert found.sentence.startswith(
        "agrees with `eps=1e-6` added to the denominator ("
    )
    assert found.sentence.endswith(" of the bound)")


def test_numbers_are_spelt_as_one_writes_them():
    assert spelt(1e-6) == "1e-6"
    assert list(decimals(0.5)) == [0.5]


def gla(arrange=lambda q, k, v, g: (q, k, v, g), finish=lambda o: o):
    """Return simple_gla with its inputs or its output changed."""

    def kernel(query, key, value, log_decay):
        q, k, v, g = arrange(*wide(query, key, value, log_decay))
        state = np.zeros((*k.shape[:2], k.shape[-1], v.shape[-1]), q.dtype)
        output = np.zeros_like(v)
        for t in range(q.shape[-2]):
            state = np.exp(g[..., t, None, None]) * state
            state = state + k[..., t, :, None] * v[..., t, None, :]
            output[..., t, :] = (q[..., t, None, :] @ state)[..., 0, :]
        output *= np.asarray(q.shape[-1] ** -0.5, q.dtype)
        return finish(output).astype(query.dtype)

    return kernel


def swap_heads(output):
    output[:, :2] = output[:, 1::-1].copy()
    return output


class Replaying:
    """Return the output of the call before if its query has the same shape."""

    def __init__(self):
        self.shape = self.output = None

    def __call__(self, query, key, value, log_decay):
        if self.shape != query.shape:
            self.shape, self.output = query.shape, gla()(query, key, value, log_decay)
        return self.output


# The hypotheses that hold for every operator, on one with gates.
GATED = {
    "zeros": (gla(finish=lambda o: 0 * o), "returns_zeros", "zeros"),
    "late rows": (
        gla(finish=lambda o: np.concatenate([o[..., :1, :], o[..., :-1, :]], -2)),
        "rows_late",
        "one late",
    ),
    "heads": (gla(finish=swap_heads), "heads_mixed", "head 0 is head 1"),
    "doubled": (gla(finish=lambda o: 3 * o), "output_scaled", "outputs times 3"),
    "tail": (gla(finish=rows(0, 16)), "tail_not_written", "chunk of 16 that are zero"),
    "float16": (gla(finish=half), "output_rounded", "rounded to float16"),
    "swapped": (
        gla(arrange=lambda q, k, v, g: (k, q, v, g)),
        "query_key_swapped",
        "query and key swapped",
    ),
    "next head": (
        gla(arrange=lambda q, k, v, g: (np.roll(q, -1, 1), k, v, g)),
        "queries_mixed",
        "the queries of the next head",
    ),
    "replays": (Replaying(), "replays_output", "an earlier call"),
}


@pytest.mark.parametrize("case", GATED)
def test_the_same_causes_are_named_of_operators_with_gates(case):
    kernel, name, says = GATED[case]
    found = named(kernel, "simple_gla")
    assert (found and found.name) == name
    assert says in (found.sentence if found else "")


def test_a_right_operator_with_gates_has_no_cause():
    assert named(gla(), "simple_gla") is None
