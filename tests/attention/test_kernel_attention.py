"""Kernel attention: equation 3 of the paper, and its special cases."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import linkern
from linkern import similarity as similarities
from linkern.attention import kernel_attention, softmax_attention
from tests.attention.calling import close, draw, through

few = settings(max_examples=12)


def squared(query, key):
    return (query @ key.mT) ** 2


def scaled_exponential(query, key):
    return np.exp(query @ np.swapaxes(key, -1, -2) / query.shape[-1] ** 0.5)


def through_features(feature_map):
    return lambda query, key: feature_map(query) @ feature_map(key).mT


def wrong(fault=None):
    """Return equation 3 with a fault."""

    def attention(query, key, value, similarity, *, causal=True, mask=None):
        length, source = query.shape[-2], key.shape[-2]
        offset = 0 if fault == "aligned at top left" else source - length
        offset += {"sees one token ahead": 1, "own token hidden": -1}.get(fault, 0)
        visible = np.tri(length, source, offset, dtype=bool) if causal else True
        if mask is not None and fault != "mask ignored":
            visible = visible & mask
        weights = similarity(query, key)
        if fault == "query and key exchanged":
            weights = similarity(key, query).mT[..., :length, :source]
        seen = np.where(visible, weights, 0)
        if fault == "normalised, then masked":
            seen = weights * np.where(visible, 1, 0)
        total = weights if fault == "normalised, then masked" else seen
        total = total.sum(-1, keepdims=True)
        if fault == "not normalised":
            total = 1.0
        if fault == "an epsilon":
            total = total + 1e-6
        with np.errstate(invalid="ignore"):
            return seen @ value / total

    return attention


def law_is_equation_3(attention, seed, length, more, causal):
    source = length + more
    query, key, value = draw(seed, (length, 3), (source, 3), (source, 2))
    mask = np.random.default_rng(seed).random((length, source)) < 0.7

    def skewed(x, y):
        # Not symmetric, so that exchanging query and key changes it.
        return (x @ y.mT) ** 2 * x[..., :1] ** 2

    # Small weights are divided by a small sum, without loss of accuracy.
    result = attention(1e-3 * query, key, value, skewed, causal=causal, mask=mask)
    expected = np.full((length, 2), np.nan)
    for i in range(length):
        total, weighted = 0.0, np.zeros(2)
        for j in range(more + i + 1 if causal else source):
            if mask[i, j]:
                weight = (query[i] @ key[j]) ** 2
                total, weighted = total + weight, weighted + weight * value[j]
        expected[i] = weighted / total if total else np.nan
    close(result, expected)


def law_exponential_is_softmax(attention, seed, length, more, causal):
    source = length + more
    query, key, value = draw(seed, (2, length, 3), (source, 3), (2, source, 2))
    result = attention(query, key, value, similarities.exponential(), causal=causal)
    close(result, softmax_attention(query, key, value, causal=causal))


def law_features_are_linear_attention(attention, seed, length, _more, causal):
    query, key, value = draw(seed, (2, length, 3), (2, length, 3), (length, 2))
    for feature_map in (linkern.elu_plus_one, linkern.exp):
        similarity = through_features(feature_map)
        result = attention(query, key, value, similarity, causal=causal)
        options = {"causal": causal, "feature_map": feature_map}
        close(result, linkern.linear_attention(query, key, value, **options).output)


def law_weights_sum_to_one(attention, seed, length, more, causal):
    source = length + more
    query, key = draw(seed, (length, 3), (source, 3))
    mask = np.ones((length, source), dtype=bool)
    mask[:, 1:] = np.random.default_rng(seed).random((length, source - 1)) < 0.5
    similarity = similarities.polynomial(degree=2)
    options = {"causal": causal, "mask": mask}
    result = attention(query, key, np.ones((source, 1)), similarity, **options)
    close(result, np.ones((length, 1)))


LAWS = {
    law_is_equation_3: (
        "aligned at top left",
        "sees one token ahead",
        "own token hidden",
        "mask ignored",
        "query and key exchanged",
        "normalised, then masked",
        "not normalised",
        "an epsilon",
    ),
    law_exponential_is_softmax: ("aligned at top left", "not normalised"),
    law_features_are_linear_attention: ("sees one token ahead", "not normalised"),
    law_weights_sum_to_one: ("normalised, then masked", "an epsilon"),
}


@pytest.mark.parametrize("law", LAWS)
@few
@given(
    seed=st.integers(0, 2**31),
    length=st.integers(1, 12),
    more=st.integers(0, 4),
    causal=st.booleans(),
)
def test_law(law, eager_lib, seed, length, more, causal):
    law(through(eager_lib, kernel_attention), seed, length, more, causal)


@pytest.mark.parametrize(
    ("law", "fault"),
    [(law, fault) for law, faults in LAWS.items() for fault in (None, *faults)],
)
def test_law_fails_on(law, fault):
    def check_law():
        for seed in range(4):
            law(wrong(fault), seed, 5, 2, True)

    if fault is None:
        return check_law()
    with pytest.raises(AssertionError):
        check_law()
    return None


@pytest.mark.parametrize(
    "similarity",
    [
        similarities.rbf(bandwidth=0.7),
        similarities.polynomial(degree=2, offset=1.0),
        similarities.taylor(),
    ],
)
def test_similarities_of_the_package(eager_lib, similarity):
    query, key, value = draw(0, (2, 6, 3), (6, 3), (2, 6, 2))
    result = through(eager_lib, kernel_attention)(query, key, value, similarity)
    weights = np.tril(similarity(query, key))
    close(result, weights @ value / weights.sum(-1, keepdims=True))


def test_no_weight_at_all_is_the_exact_quotient_nan(eager_lib):
    call = through(eager_lib, kernel_attention)
    query, key, value = np.asarray([[0.0], [2.0]]), np.ones((2, 1)), np.ones((2, 1))
    close(call(query, key, value, squared), np.asarray([[np.nan], [1.0]]))


def test_no_tokens(eager_lib):
    call = through(eager_lib, kernel_attention)
    assert call(*draw(0, (0, 3), (0, 3), (0, 2)), squared).shape == (0, 2)


def test_torch_gradients_are_those_of_the_formula(torch):
    inputs = [
        torch.asarray(x).requires_grad_() for x in draw(1, (5, 3), (6, 3), (6, 2))
    ]
    mask = torch.ones((5, 6), dtype=torch.bool)
    mask[2, 1:3] = mask[4, 0] = False
    similarity = similarities.rbf(bandwidth=1.0)
    assert torch.autograd.gradcheck(
        lambda *x: kernel_attention(*x, similarity, mask=mask), inputs
    )
    query, key, value = inputs
    weights = (-0.5 * ((query[:, None] - key[None]) ** 2).sum(-1)).exp()
    weights = weights * mask.tril(1)
    expected = weights @ value / weights.sum(-1, keepdim=True)
    cotangent = torch.asarray(draw(2, (5, 2))[0])
    ours = kernel_attention(*inputs, similarity, mask=mask)
    ours = torch.autograd.grad(ours, inputs, cotangent)
    for x, y in zip(
        ours, torch.autograd.grad(expected, inputs, cotangent), strict=True
    ):
        close(x, y)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_accumulated_in_float32(torch, dtype):
    half = getattr(torch, dtype)
    inputs = [torch.asarray(x).to(half) for x in draw(0, *[(40, 4)] * 3)]
    result = kernel_attention(*inputs, squared)
    assert result.dtype == half
    wide = kernel_attention(*(x.float() for x in inputs), squared)
    assert torch.equal(result, wide.to(half))


X = np.ones((5, 4))
call = partial(kernel_attention, X, X, X)


def narrow(query, key):
    return squared(query, key).astype("float32")


@pytest.mark.parametrize(
    ("similarity", "options", "error", "sentence"),
    [
        (3, {}, TypeError, "`similarity` must be a callable from .*, got 3"),
        (lambda q, k: [1.0], {}, TypeError, "`similarity` must return an array of"),
        (lambda q, k: q, {}, ValueError, r"each query and key, shape \(5, 5\), got"),
        (narrow, {}, TypeError, r"must keep the dtype .*\(float64\), got float32"),
        (lambda q, k: -squared(q, k), {}, ValueError, "`similarity` must not be negat"),
        (squared, {"causal": 1}, TypeError, "`causal` must be True or False"),
        (squared, {"mask": X}, TypeError, "`mask` must be boolean"),
    ],
)
def test_errors(similarity, options, error, sentence):
    with pytest.raises(error, match=sentence):
        call(similarity, **options)


def test_a_masked_negative_similarity_is_no_error():
    below = 1 - 2 * np.triu(np.ones((5, 5)), 1)
    close(call(lambda q, k: below), X)
    with pytest.raises(ValueError, match="must not be negative"):
        call(lambda q, k: below, causal=False)
