"""LSH attention: its definition pair by pair, and its limit of many rounds."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkern.attention import lsh_attention, softmax_attention
from tests.attention.calling import close, draw, through

few = settings(max_examples=8)


def hashes(query, rounds, factors, rng):
    """Return buckets ``(R, T)`` by the rotations that a call with this `rng` draws."""
    halves = [factor // 2 for factor in factors]
    drawn = np.random.default_rng(rng).standard_normal(
        (rounds, query.shape[-1], sum(halves))
    )
    bucket = np.zeros((rounds, len(query)), dtype=int)
    for r, rotations in enumerate(drawn):
        for f, half in enumerate(halves):
            start = sum(halves[:f])
            turned = query @ rotations[:, start : start + half]
            nearest = np.concatenate([turned, -turned], axis=-1).argmax(axis=-1)
            bucket[r] = 2 * half * bucket[r] + nearest
    return bucket


def meetings(bucket, size, *, causal, fault=None):
    """Return the number of rounds in which each pair matches, ``(T, T)``."""
    length = bucket.shape[-1]
    times = np.zeros((length, length))
    for buckets in bucket:
        order = sorted(range(length), key=lambda i: (buckets[i], i))
        if fault == "not sorted by bucket":
            order = range(length)
        if fault == "not sorted by position":
            order = sorted(range(length), key=lambda i: (buckets[i], -i))
        place = np.empty(length, dtype=int)
        place[list(order)] = np.arange(length)
        chunk = place // size
        for i in range(length):
            for j in range(length):
                ahead = chunk[i] - chunk[j]
                near = ahead in {"no chunk before": (0,)}.get(fault, (0, 1))
                if fault == "wraps around":
                    near = near or (chunk[i] == 0 and chunk[j] == chunk.max())
                same = buckets[i] == buckets[j] or fault == "buckets ignored"
                in_time = j <= i or fault == "order forgotten" or not causal
                other = i != j or fault == "sees itself"
                times[i, j] += near and same and in_time and other
    return times


def wrong(fault=None):
    """Return LSH attention, computed pair by pair, with a fault."""

    def attention(
        query,
        value,
        *,
        rounds=1,
        bucket_count=2,
        chunk_size=64,
        causal=True,
        scale=None,
        rng=None,
    ):
        factors = bucket_count if isinstance(bucket_count, tuple) else (bucket_count,)
        factors = () if factors == (1,) else factors
        bucket = hashes(query, rounds, factors, rng)
        times = meetings(bucket, chunk_size, causal=causal, fault=fault)
        key = query / np.sqrt((query**2).sum(-1, keepdims=True))
        if fault == "keys not of unit length":
            key = query
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        if fault == "scale forgotten":
            factor = 1.0
        counted = times if fault == "pairs count in each round" else times > 0
        weights = np.exp(factor * query @ key.T) * counted
        if fault == "rounds averaged":
            each = [
                meetings(x[None], chunk_size, causal=causal)
                * np.exp(factor * query @ key.T)
                for x in bucket
            ]
            each = [x + np.diag(x.sum(-1) == 0) for x in each]
            return np.mean([x @ value / x.sum(-1, keepdims=True) for x in each], axis=0)
        alone = weights.sum(-1) == 0
        if fault != "nothing for a token alone":
            weights = weights + np.diag(alone)
        total = weights.sum(-1, keepdims=True)
        return weights @ value / np.where(total == 0, 1, total)

    return attention


def softmax_of_others(query, value, *, causal=True, scale=None):
    """Return softmax over the other tokens, with unit keys; the value if alone."""
    key = query / np.linalg.norm(query, axis=-1, keepdims=True)
    mask = ~np.eye(len(query), dtype=bool)
    options = {"causal": causal, "mask": mask, "scale": scale}
    result = softmax_attention(query, key, value, **options)
    return np.where(np.isnan(result), value, result)


def law_is_the_definition(attention, seed, length, size, causal):
    query, value = draw(seed, (length, 3), (length, 2))
    query = 4 * query
    for count in (1, 2, 6, (2, 4)):
        factors = count if isinstance(count, tuple) else (count,)
        factors = () if count == 1 else factors
        bucket = hashes(query, 3, factors, seed)
        seen = meetings(bucket, size, causal=causal)
        options = {"rounds": 3, "bucket_count": count, "chunk_size": size}
        result = attention(query, value, causal=causal, rng=seed, **options)
        key = query / np.linalg.norm(query, axis=-1, keepdims=True)
        for i in range(length):
            others = np.flatnonzero(seen[i])
            expected = value[i]
            if len(others):
                weights = np.exp(query[i] @ key[others].T / 3**0.5)
                expected = weights @ value[others] / weights.sum()
            close(result[i], expected)


def law_one_bucket_is_softmax_of_others(attention, seed, length, _size, causal):
    query, value = draw(seed, (length, 3), (length, 2))
    for rounds in (1, 3):
        for size in (length, length + 5):
            options = {"rounds": rounds, "bucket_count": 1, "chunk_size": size}
            result = attention(query, value, causal=causal, rng=seed, **options)
            close(result, softmax_of_others(query, value, causal=causal))


def law_many_rounds_are_softmax_of_others(attention, seed, length, _size, causal):
    """A pair at an angle of at most 90 degrees matches in every other round."""
    query, value = draw(seed, (length, 3), (length, 2))
    query = abs(query)
    # 40 rounds miss one of 144 pairs with a probability of 144 * 2^-40.
    options = {"rounds": 40, "bucket_count": 2, "chunk_size": length}
    result = attention(query, value, causal=causal, rng=seed, **options)
    close(result, softmax_of_others(query, value, causal=causal))


def law_more_rounds_come_closer(attention, _seed, length, _size, causal):
    errors = []
    for rounds in (1, 2, 4, 16):
        each = []
        for seed in range(12):
            query, value = draw(seed, (length, 4), (length, 2))
            query = 2 * query
            options = {"rounds": rounds, "bucket_count": 4, "chunk_size": length}
            result = attention(query, value, causal=causal, rng=seed, **options)
            expected = softmax_of_others(query, value, causal=causal)
            each.append(abs(result - expected).mean())
        errors.append(np.mean(each))
    # Monotone by a large margin: most pairs match within 16 rounds.
    assert all(later < before for before, later in pairwise(errors))
    assert errors[-1] < 0.3 * errors[0]


def law_later_tokens_change_nothing_in_a_chunk(attention, seed, length, _size, _causal):
    # One chunk holds all tokens: later tokens change places, but no matches.
    query, value = draw(seed, (length, 3), (length, 2))
    half = (length + 1) // 2
    options = {"rounds": 2, "bucket_count": 2, "chunk_size": length, "rng": seed}
    whole = attention(query, value, **options)
    close(attention(query[:half], value[:half], **options), whole[:half])


LAWS = {
    law_is_the_definition: (
        "not sorted by bucket",
        "not sorted by position",
        "no chunk before",
        "wraps around",
        "buckets ignored",
        "order forgotten",
        "sees itself",
        "keys not of unit length",
        "scale forgotten",
        "pairs count in each round",
        "rounds averaged",
        "nothing for a token alone",
    ),
    law_one_bucket_is_softmax_of_others: (
        "order forgotten",
        "sees itself",
        "keys not of unit length",
        "scale forgotten",
        "nothing for a token alone",
    ),
    law_many_rounds_are_softmax_of_others: (
        "pairs count in each round",
        "rounds averaged",
        "sees itself",
    ),
    law_more_rounds_come_closer: ("rounds averaged", "scale forgotten"),
    law_later_tokens_change_nothing_in_a_chunk: ("order forgotten",),
}


@pytest.mark.parametrize("law", [law for law in LAWS if "closer" not in law.__name__])
@few
@given(
    seed=st.integers(0, 2**31),
    length=st.integers(1, 12),
    size=st.integers(1, 6),
    causal=st.booleans(),
)
def test_law(law, eager_lib, seed, length, size, causal):
    law(through(eager_lib, lsh_attention), seed, length, size, causal)


@pytest.mark.parametrize("causal", [True, False])
def test_more_rounds_come_closer(causal):
    law_more_rounds_come_closer(lsh_attention, 0, 16, None, causal)


@pytest.mark.parametrize(
    ("law", "fault"),
    [(law, fault) for law, faults in LAWS.items() for fault in (None, *faults)],
)
def test_law_fails_on(law, fault):
    def check_law():
        for causal in (True, False):
            law(wrong(fault), 2, 11, 3, causal)

    if fault is None:
        return check_law()
    with pytest.raises(AssertionError):
        check_law()
    return None


def test_a_batch_has_the_results_of_its_parts(eager_lib):
    call = through(eager_lib, lsh_attention)
    query, value = draw(0, (2, 3, 11, 4), (3, 11, 2))
    options = {"rounds": 2, "chunk_size": 3, "rng": 7}
    result = call(query, value, **options)
    assert result.shape == (2, 3, 11, 2)
    close(result[1, 2], call(query[1, 2], value[2], **options))
    # Values may have leading axes of their own.
    close(
        call(query[1, 2], value, **options)[1], call(query[1, 2], value[1], **options)
    )


def test_more_rounds_keep_those_before():
    """With all tokens in one chunk, a pair that matches keeps matching."""
    query, value = draw(0, (9, 3))[0], np.eye(9)
    options = {"bucket_count": (2, 4), "chunk_size": 9, "causal": False, "rng": 3}
    few_met = lsh_attention(query, value, rounds=2, **options) > 0
    many_met = lsh_attention(query, value, rounds=5, **options) > 0
    others = ~np.eye(9, dtype=bool)
    assert (many_met >= few_met)[others].all()
    assert many_met.sum() > few_met.sum()


def test_the_same_source_gives_the_same_result():
    query, value = draw(0, (40, 4), (40, 2))
    first = lsh_attention(query, value, chunk_size=4, rng=1)
    assert np.array_equal(first, lsh_attention(query, value, chunk_size=4, rng=1))
    generator = np.random.default_rng(1)
    assert np.array_equal(
        first, lsh_attention(query, value, chunk_size=4, rng=generator)
    )
    again = lsh_attention(query, value, chunk_size=4, rng=generator)
    assert abs(first - again).max() > 1e-3


@pytest.mark.parametrize("length", [0, 1])
def test_no_tokens_and_one(eager_lib, length):
    call = through(eager_lib, lsh_attention)
    query, value = draw(0, (2, length, 3), (length, 2))
    for options in ({}, {"bucket_count": 1}, {"chunk_size": 1, "rounds": 2}):
        result = call(query, value, rng=0, **options)
        close(result, np.broadcast_to(value, (2, length, 2)), 0)


@pytest.mark.parametrize("causal", [True, False])
def test_torch_gradients_are_those_of_the_pairs_that_met(torch, causal):
    # Seven tokens in chunks of three: padding has gradients, too.
    drawn = draw(6, (7, 3), (7, 2))
    inputs = [torch.asarray(x).requires_grad_() for x in drawn]
    options = {"rounds": 2, "bucket_count": 8, "chunk_size": 3, "causal": causal}
    seen = meetings(hashes(drawn[0], 2, (8,), 0), 3, causal=causal) > 0
    alone = ~seen.any(-1)
    assert alone.any()
    assert seen.any()
    query, value = inputs
    key = query / query.norm(dim=-1, keepdim=True)
    scores = (query @ key.mT / 3**0.5).masked_fill(~torch.asarray(seen), -1e4)
    expected = torch.where(
        torch.asarray(alone)[:, None], value, scores.softmax(-1) @ value
    )
    cotangent = torch.asarray(draw(2, (7, 2))[0])
    result = lsh_attention(*inputs, rng=0, **options)
    ours = torch.autograd.grad(result, inputs, cotangent)
    for x, y in zip(
        ours, torch.autograd.grad(expected, inputs, cotangent), strict=True
    ):
        close(x, y)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_accumulated_in_float32(torch, dtype):
    half = getattr(torch, dtype)
    inputs = [torch.asarray(x).to(half) for x in draw(0, (40, 4), (40, 3))]
    result = lsh_attention(*inputs, chunk_size=4, rounds=2, rng=0)
    assert result.dtype == half
    wide = lsh_attention(*(x.float() for x in inputs), chunk_size=4, rounds=2, rng=0)
    assert torch.equal(result, wide.to(half))


X = np.ones((5, 4))


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"rounds": 0}, ValueError, "`rounds` must be at least 1, got 0"),
        ({"rounds": 1.5}, TypeError, "`rounds` must be an integer, got 1.5"),
        ({"chunk_size": 0}, ValueError, "`chunk_size` must be at least 1, got 0"),
        ({"bucket_count": 3}, ValueError, "`bucket_count` must be 1, a positive even"),
        ({"bucket_count": ()}, ValueError, "`bucket_count` must be 1, a positive even"),
        ({"bucket_count": (2, 1)}, ValueError, "`bucket_count` must be 1, a positive"),
        ({"bucket_count": 2.0}, TypeError, "`bucket_count` must be an integer"),
        ({"causal": 0}, TypeError, "`causal` must be True or False"),
        ({"scale": 0.0}, ValueError, "`scale` must be finite and not zero"),
        ({"rng": "a"}, TypeError, "`rng` must be what `numpy.random.default_rng` tak"),
        ({"rng": -1}, ValueError, "`rng` must be what `numpy.random.default_rng` tak"),
    ],
)
def test_errors(options, error, sentence):
    with pytest.raises(error, match=sentence):
        lsh_attention(X, X, **options)


def test_errors_of_shapes():
    with pytest.raises(ValueError, match="`query` and `value` must have the same len"):
        lsh_attention(X, X[:3])
    with pytest.raises(ValueError, match="the leading axes of query and value"):
        lsh_attention(np.ones((2, 5, 4)), np.ones((3, 5, 4)))
    with pytest.raises(TypeError, match="`query` and `value` must have the same dtype"):
        lsh_attention(X, X.astype("float32"))
    with pytest.raises(ValueError, match="`value` must have shape"):
        lsh_attention(X, X[0])
    with pytest.raises(TypeError, match="`query` must have a real floating dtype"):
        lsh_attention(X.astype(int), X)


def test_a_query_of_zeros_has_no_direction_as_a_key():
    query, value = draw(0, (4, 3), (4, 2))
    query[1] = 0
    with np.errstate(invalid="ignore"):
        result = lsh_attention(query, value, bucket_count=1)
    # It sees the first token, and the later ones see it.
    assert np.isfinite(result[:2]).all()
    assert np.isnan(result[2:]).all()


def test_the_device_is_kept():
    xp = pytest.importorskip("array_api_strict")
    device = xp.Device("device1")
    x = xp.asarray(draw(0, (7, 3))[0], device=device)
    result = lsh_attention(x, x, rounds=2, chunk_size=2, rng=0)
    assert result.device == device
