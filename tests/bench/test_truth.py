"""What answers are judged by is right, and says so when they are wrong."""

import numpy as np
import pytest

import linkern
from linkern.bench import truth
from linkern.bench.tasks import Inputs, Task

LENGTH = 300  # more than one chunk of the textbook loop
ROWS = truth.judged_rows(LENGTH)


def task(kind):
    return Task("t", "", kind, (LENGTH,), batch=2, heads=2, dim=5, dtype="float64")


def drawn(kind):
    return Inputs.drawn(task(kind), LENGTH, 7)


def due(kind):
    """Return what linkern itself computes, in float64, by its quadratic form."""
    x = drawn(kind)
    options = {"causal": kind != "full", "form": "parallel"}
    given = (x.query, x.key, x.value)
    if kind != "gradient":
        return [linkern.linear_attention(*given, **options).output]
    result, pullback = linkern.vjp(linkern.linear_attention, *given, **options)
    found = pullback(x.cotangent)
    return [result.output, *(found[name] for name in ("query", "key", "value"))]


def law_truth_is_the_quadratic_form(answers, kind):
    found = answers(drawn(kind), kind, "attention", ROWS)
    wanted = [x[..., ROWS, :] for x in due(kind)]
    # Sums of 300 terms in float64, and gradients of quotients of them.
    assert truth.largest_error(found, wanted) <= 1e-11


def sees_one_token_less(inputs, kind, meaning, rows):
    late = [max(i - 1, 0) for i in rows]
    return truth.answers(inputs, kind, meaning, late)


def forgets_to_normalize(inputs, kind, meaning, rows):
    return truth.answers(inputs, kind, "sums", rows)


def ignores_the_denominator_of_gradients(inputs, kind, meaning, rows):
    first, *others = truth.answers(inputs, kind, meaning, rows)
    return [first, *(1.001 * x for x in others)]


@pytest.mark.parametrize("kind", ["causal", "full", "gradient", "decode"])
def test_truth_is_the_quadratic_form(kind):
    law_truth_is_the_quadratic_form(truth.answers, kind)


@pytest.mark.parametrize(
    ("mutant", "kind"),
    [
        (sees_one_token_less, "causal"),
        (sees_one_token_less, "decode"),
        (forgets_to_normalize, "causal"),
        (ignores_the_denominator_of_gradients, "gradient"),
    ],
)
def test_wrong_truths_are_caught(mutant, kind):
    with pytest.raises(AssertionError):
        law_truth_is_the_quadratic_form(mutant, kind)


@pytest.mark.parametrize("causal", [True, False])
def test_softmax_is_softmax(causal):
    kind = "causal" if causal else "full"
    x = drawn(kind)
    wanted = linkern.attention.softmax_attention(
        x.query, x.key, x.value, causal=causal
    )[..., ROWS, :]
    found = truth.answers(x, kind, "softmax", ROWS)
    assert truth.largest_error(found, [wanted]) <= 1e-12


def test_the_exponential_is_that_of_its_feature_map():
    x = drawn("causal")
    wanted = linkern.linear_attention(x.query, x.key, x.value, feature_map=np.exp)
    found = truth.answers(x, "causal", "exponential", ROWS)
    assert truth.largest_error(found, [wanted.output[..., ROWS, :]]) <= 1e-11


def test_whatever_is_missing_is_an_infinite_error():
    one = np.ones((1, 1, 3, 2))
    assert truth.largest_error([one], [one]) == 0
    assert truth.largest_error([one + 0.5], [2 * one]) == 0.25
    assert truth.largest_error([], [one]) == np.inf
    assert truth.largest_error([one[:, :, :2]], [one]) == np.inf
    assert truth.largest_error([np.nan * one], [one]) == np.inf


@pytest.mark.parametrize("length", [1, 2, 64, 65, 1000])
def test_judged_rows_are_tokens_with_both_ends(length):
    rows = truth.judged_rows(length)
    assert rows == sorted(set(rows))
    assert rows[0] == 0
    assert rows[-1] == length - 1
    assert length < 129 or {63, 64, 127, 128} <= set(rows)
