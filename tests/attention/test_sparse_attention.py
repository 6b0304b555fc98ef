"""Sparse attention: softmax over the pairs of a pattern, each counted once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkern.attention import softmax_attention, sparse_attention, sparse_mask
from tests.attention.calling import close, draw, softmax_rows, through

few = settings(max_examples=12)
PATTERNS = ("local", "strided", "fixed")


def sees(pattern, i, j, window, summary, causal, *, first=False):
    """Return two flags: the pair is in the near part, and in the far part."""
    if causal and j > i:
        return 0, 0
    near, far = abs(i - j) < window, False
    if pattern == "strided":
        far = abs(i - j) % window == 0
    if pattern == "fixed":
        near = i // window == j // window
        start = 0 if first else window - summary
        far = start <= j % window < start + summary
    return int(near), int(far)


def wrong(fault=None):
    """Return sparse attention, computed pair by pair, with a fault."""

    def attention(
        query, key, value, *, pattern, window, summary=None, causal=True, scale=None
    ):
        length = query.shape[-2]
        width = {"window one longer": 1, "window one shorter": -1}.get(fault, 0)
        columns = summary or 1
        parts = np.zeros((2, length, length))
        for i in range(length):
            for j in range(length):
                order = causal and fault != "order forgotten"
                first = fault == "first columns of a block"
                result = sees(
                    pattern, i, j, window + width, columns, order, first=first
                )
                parts[:, i, j] = result
        near, far = parts
        if not causal and fault == "one direction":
            near = np.tril(near)
        counted = np.maximum(near, far)
        if fault == "pairs of both parts counted twice":
            counted = near + far
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        if fault == "scale forgotten":
            factor = 1.0
        score = np.exp(factor * query @ np.swapaxes(key, -1, -2))
        with np.errstate(all="ignore"):
            if fault == "two softmaxes added":
                rows = [score * x for x in (near, np.maximum(far - near, 0))]
                each = [x @ value / x.sum(-1, keepdims=True) for x in rows]
                return np.nansum(each, axis=0)
            weights = score * counted
            return weights @ value / weights.sum(-1, keepdims=True)

    return attention


def law_is_softmax_over_the_pattern(attention, pattern, seed, length, window, causal):
    query, key, value = draw(seed, (2, length, 3), (length, 3), (2, length, 2))
    for summary in (1, window) if pattern == "fixed" else (None,):
        pairs = [
            [any(sees(pattern, i, j, window, summary, causal)) for j in range(length)]
            for i in range(length)
        ]
        options = {"pattern": pattern, "window": window, "causal": causal}
        result = attention(query, key, value, summary=summary, scale=0.7, **options)
        for x, q, v in zip(result, query, value, strict=True):
            close(x, softmax_rows(0.7 * q @ key.T, np.asarray(pairs), v))


def law_a_full_window_is_softmax(attention, pattern, seed, length, window, causal):
    query, key, value = draw(seed, (length, 3), (length, 3), (length, 2))
    options = {"pattern": pattern, "causal": causal}
    result = attention(query, key, value, window=length + window - 1, **options)
    close(result, softmax_attention(query, key, value, causal=causal))


def law_later_tokens_change_nothing(attention, pattern, seed, length, window, _causal):
    query, key, value = draw(seed, (length, 3), (length, 3), (length, 2))
    options = {"pattern": pattern, "window": window}
    whole = attention(query, key, value, **options)
    half = length // 2
    close(attention(query[:half], key[:half], value[:half], **options), whole[:half])


def law_both_directions_mirror(attention, pattern, seed, length, window, _causal):
    if pattern == "fixed":  # its blocks begin at the first token
        return
    rows = draw(seed, (length, 3), (length, 3), (length, 2))
    options = {"pattern": pattern, "window": window, "causal": False}
    result = attention(*(x[::-1].copy() for x in rows), **options)
    close(result[::-1], attention(*rows, **options))


LAWS = {
    law_is_softmax_over_the_pattern: {
        "window one longer": PATTERNS,
        "window one shorter": PATTERNS,
        "order forgotten": PATTERNS,
        "scale forgotten": PATTERNS,
        "first columns of a block": ("fixed",),
        "pairs of both parts counted twice": ("strided", "fixed"),
        "two softmaxes added": ("strided", "fixed"),
    },
    law_a_full_window_is_softmax: {
        "order forgotten": PATTERNS,
        "scale forgotten": PATTERNS,
        "pairs of both parts counted twice": ("strided",),
    },
    law_later_tokens_change_nothing: {"order forgotten": PATTERNS},
    law_both_directions_mirror: {"one direction": ("local", "strided")},
}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("law", LAWS)
@few
@given(
    seed=st.integers(0, 2**31),
    length=st.integers(1, 17),
    window=st.integers(1, 8),
    causal=st.booleans(),
)
def test_law(law, pattern, eager_lib, seed, length, window, causal):
    call = through(eager_lib, sparse_attention)
    law(call, pattern, seed, length, window, causal)


@pytest.mark.parametrize(
    ("law", "fault", "pattern"),
    [
        (law, fault, pattern)
        for law, faults in LAWS.items()
        for fault, patterns in {None: PATTERNS, **faults}.items()
        for pattern in patterns
    ],
)
def test_law_fails_on(law, fault, pattern):
    def check_law():
        law(wrong(fault), pattern, 1, 11, 3, True)

    if fault is None:
        return check_law()
    with pytest.raises(AssertionError):
        check_law()
    return None


@few
@given(
    pattern=st.sampled_from(PATTERNS),
    length=st.integers(0, 20),
    window=st.integers(1, 24),
    causal=st.booleans(),
)
def test_the_mask_has_the_pairs(eager_lib, pattern, length, window, causal):
    like = eager_lib.array(np.zeros(1))
    result = sparse_mask(pattern, length, window, causal, like=like)
    assert type(result) is type(like)
    expected = [
        [any(sees(pattern, i, j, window, 1, causal)) for j in range(length)]
        for i in range(length)
    ]
    expected = np.asarray(expected, dtype=bool).reshape(length, length)
    assert np.array_equal(eager_lib.numpy(result), expected)
    assert np.array_equal(sparse_mask(pattern, length, window, causal), expected)
    if not causal and pattern != "fixed":
        assert np.array_equal(expected, expected.T)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("causal", [True, False])
def test_torch_gradients_are_those_of_softmax(torch, pattern, causal):
    # Seven tokens are no whole number of windows: padding has gradients, too.
    inputs = [
        torch.asarray(x).requires_grad_() for x in draw(1, (7, 3), (7, 3), (7, 2))
    ]
    options = {"pattern": pattern, "window": 3, "causal": causal}
    mask = sparse_mask(pattern, 7, 3, causal, like=inputs[0])
    result = sparse_attention(*inputs, **options)
    expected = softmax_attention(*inputs, causal=causal, mask=mask)
    cotangent = torch.asarray(draw(2, (7, 2))[0])
    ours = torch.autograd.grad(result, inputs, cotangent)
    for x, y in zip(
        ours, torch.autograd.grad(expected, inputs, cotangent), strict=True
    ):
        close(x, y)
    assert torch.autograd.gradcheck(lambda *x: sparse_attention(*x, **options), inputs)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_accumulated_in_float32(torch, dtype, pattern):
    half = getattr(torch, dtype)
    inputs = [torch.asarray(x).to(half) for x in draw(0, *[(40, 4)] * 3)]
    result = sparse_attention(*inputs, pattern=pattern, window=6)
    assert result.dtype == half
    wide = (x.float() for x in inputs)
    assert torch.equal(
        result, sparse_attention(*wide, pattern=pattern, window=6).to(half)
    )


@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_tokens(eager_lib, pattern):
    call = through(eager_lib, sparse_attention)
    arrays = draw(0, (2, 0, 3), (2, 0, 3), (0, 2))
    assert call(*arrays, pattern=pattern, window=3).shape == (2, 0, 2)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_device_is_kept(pattern):
    xp = pytest.importorskip("array_api_strict")
    device = xp.Device("device1")
    x = xp.asarray(draw(0, (7, 3))[0], device=device)
    assert sparse_attention(x, x, x, pattern=pattern, window=3).device == device
    assert sparse_mask(pattern, 7, 3, like=x).device == device


X = np.ones((5, 4))


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"pattern": "dense"}, ValueError, '`pattern` must be one of "local", "stri'),
        ({"window": 0}, ValueError, "`window` must be at least 1, got 0"),
        ({"window": 2.0}, TypeError, "`window` must be an integer"),
        ({"summary": 1}, ValueError, '`summary` applies to pattern "fixed" only'),
        (
            {"pattern": "fixed", "summary": 4},
            ValueError,
            "`summary` must be at most `window`, 3, got 4",
        ),
        (
            {"pattern": "fixed", "summary": 0},
            ValueError,
            "`summary` must be at least 1",
        ),
        ({"causal": None}, TypeError, "`causal` must be True or False"),
        ({"scale": np.inf}, ValueError, "`scale` must be finite"),
    ],
)
def test_errors(options, error, sentence):
    with pytest.raises(error, match=sentence):
        sparse_attention(X, X, X, **{"window": 3, **options})


def test_errors_of_shapes_and_masks():
    sentence = "`query` and `key` must have the same length .*, got 3 and 5; this is"
    with pytest.raises(ValueError, match=sentence):
        sparse_attention(X[:3], X, X, window=2)
    with pytest.raises(ValueError, match="`length` must not be negative"):
        sparse_mask("local", -1, 2)
