"""The reference is the quadratic form in float64, and wrong references are caught."""

import numpy as np
import pytest

import linkern
from linkern.bench import reference, tasks
from linkern.bench.tasks import Task

LENGTH = 300  # more than one chunk of the textbook loop
ROWS = reference.judged_rows(LENGTH)


def task(kind):
    return Task("t", "", kind, (LENGTH,), batch=2, heads=2, dim=5, dtype="float64")


def drawn(kind):
    return tasks.drawn(task(kind), LENGTH, 7)


def quadratic(kind):
    """Return the answer of linkern, in float64, by its quadratic form."""
    x = drawn(kind)
    options = {"causal": kind != "full", "form": "parallel"}
    given = x.arrays()[:3]
    if kind != "gradient":
        return [linkern.linear_attention(*given, **options).output]
    result, pullback = linkern.vjp(linkern.linear_attention, *given, **options)
    gradients = pullback(x.cotangent)
    return [result.output, *(gradients[name] for name in ("query", "key", "value"))]


def law_the_reference_is_the_quadratic_form(answers, kind):
    result = answers(drawn(kind), kind, "attention", ROWS)
    expected = [x[..., ROWS, :] for x in quadratic(kind)]
    # Sums of 300 terms in float64, and gradients of quotients of them.
    assert reference.largest_error(result, expected) <= 1e-11


def sees_one_token_less(inputs, kind, meaning, rows):
    late = [max(i - 1, 0) for i in rows]
    return reference.answers(inputs, kind, meaning, late)


@pytest.mark.parametrize(
    ("kind", "operator"), [("delta", "gated_delta_rule"), ("kda", "kda")]
)
def test_delta_rules_are_those_of_the_library(kind, operator):
    inputs = drawn(kind)
    np.testing.assert_allclose(np.linalg.norm(inputs.key, axis=-1), 1)
    (result,) = reference.answers(inputs, kind, "attention", ROWS)
    for form in ("recurrent", "chunkwise"):
        expected = getattr(linkern, operator)(
            *inputs.arrays(), *inputs.gates(kind), form=form
        ).output
        np.testing.assert_allclose(result, expected[..., ROWS, :], atol=1e-12)
    late = reference.answers(inputs, kind, "attention", [i - 1 for i in ROWS[1:]])
    assert reference.largest_error(late, [expected[..., ROWS[1:], :]]) > 0.1


def forgets_to_normalize(inputs, kind, meaning, rows):
    return reference.answers(inputs, kind, "sums", rows)


def ignores_the_denominator_of_gradients(inputs, kind, meaning, rows):
    first, *others = reference.answers(inputs, kind, meaning, rows)
    return [first, *(1.001 * x for x in others)]


@pytest.mark.parametrize("kind", ["causal", "full", "gradient", "decode"])
def test_the_reference_is_the_quadratic_form(kind):
    law_the_reference_is_the_quadratic_form(reference.answers, kind)


@pytest.mark.parametrize(
    ("mutant", "kind"),
    [
        (sees_one_token_less, "causal"),
        (sees_one_token_less, "decode"),
        (forgets_to_normalize, "causal"),
        (ignores_the_denominator_of_gradients, "gradient"),
    ],
)
def test_wrong_references_are_caught(mutant, kind):
    with pytest.raises(AssertionError):
        law_the_reference_is_the_quadratic_form(mutant, kind)


@pytest.mark.parametrize("causal", [True, False])
def test_softmax_is_softmax(causal):
    kind = "causal" if causal else "full"
    x = drawn(kind)
    expected = linkern.attention.softmax_attention(
        x.query, x.key, x.value, causal=causal
    )[..., ROWS, :]
    result = reference.answers(x, kind, "softmax", ROWS)
    assert reference.largest_error(result, [expected]) <= 1e-12


def test_the_exponential_is_that_of_its_feature_map():
    x = drawn("causal")
    expected = linkern.linear_attention(x.query, x.key, x.value, feature_map=np.exp)
    result = reference.answers(x, "causal", "exponential", ROWS)
    assert reference.largest_error(result, [expected.output[..., ROWS, :]]) <= 1e-11


def test_missing_arrays_are_an_infinite_error():
    one = np.ones((1, 1, 3, 2))
    assert reference.largest_error([one], [one]) == 0
    assert reference.largest_error([one + 0.5], [2 * one]) == 0.25
    assert reference.largest_error([], [one]) == np.inf
    assert reference.largest_error([one[:, :, :2]], [one]) == np.inf
    assert reference.largest_error([np.nan * one], [one]) == np.inf


@pytest.mark.parametrize("length", [1, 2, 64, 65, 1000])
def test_judged_rows_are_tokens_with_both_ends(length):
    rows = reference.judged_rows(length)
    assert rows == sorted(set(rows))
    assert rows[0] == 0
    assert rows[-1] == length - 1
    assert length < 129 or {63, 64, 127, 128} <= set(rows)
