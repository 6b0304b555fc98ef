"""Correct kernels that sum in ways of their own: none of them may fail a check."""

from itertools import product

import numpy as np
import pytest

from linkern.testing import run
from linkern.testing.api import plan_of
from linkern.testing.kernels.assembly import elu_plus_one
from linkern.testing.kernels.correct import featured
from linkern.testing.runner.loop import CheckFinished
from tests.marks import in_turn

SHARP = [
    "determinism",
    "value_on_integers",
    "value_on_reals",
    "value_on_random_reals",
    "row_normalisation",
    "causality",
    "scaling_of_values",
    "ranges",
]


def two_level_scan(query, key, value):
    """Sum inside blocks of 8, then over blocks, then add the two."""
    q, k, v = featured(query, key, value)
    length, pad = q.shape[-2], [(0, 0)] * (q.ndim - 2) + [(0, -q.shape[-2] % 8), (0, 0)]
    v = np.concatenate([v, np.ones_like(v[..., :1])], axis=-1)
    k, v = np.pad(k, pad), np.pad(v, pad)
    terms = k[..., :, None] * v[..., None, :]
    inside = terms.reshape(*terms.shape[:-3], -1, 8, *terms.shape[-2:]).cumsum(axis=-3)
    before = np.zeros_like(inside[..., -1, :, :])
    before[..., 1:, :, :] = inside[..., -1, :, :].cumsum(axis=-3)[..., :-1, :, :]
    states = (inside + before[..., None, :, :]).reshape(terms.shape)[..., :length, :, :]
    read = np.einsum("...k,...kv->...v", q, states)
    return (read[..., :-1] / read[..., -1:]).astype(query.dtype)


def compensated(query, key, value):
    """Carry the rounding errors of the state along, as Kahan does."""
    q, k, v = featured(query, key, value)
    v = np.concatenate([v, np.ones_like(v[..., :1])], axis=-1)
    state = np.zeros((*k.shape[:-2], k.shape[-1], v.shape[-1]), k.dtype)
    lost = np.zeros_like(state)
    read = np.empty((*q.shape[:-1], v.shape[-1]), v.dtype)
    for i in range(q.shape[-2]):
        term = k[..., i, :, None] * v[..., i, None, :] - lost
        total = state + term
        lost, state = (total - state) - term, total
        read[..., i, :] = np.einsum("...k,...kv->...v", q[..., i, :], state)
    return (read[..., :-1] / read[..., -1:]).astype(query.dtype)


def means_by_feature(query, key, value):
    """Keep a running mean of the values for each feature, and mix the means."""
    q, k, v = featured(query, key, value)
    output = np.empty((*q.shape[:-1], v.shape[-1]), v.dtype)
    mean = np.zeros((*k.shape[:-2], k.shape[-1], v.shape[-1]), v.dtype)
    total = np.zeros((*k.shape[:-2], k.shape[-1], 1), v.dtype)
    for i in range(q.shape[-2]):
        weight = k[..., i, :, None]
        total = total + weight
        share = np.divide(weight, total, out=np.zeros_like(total), where=total != 0)
        mean = mean + share * (v[..., i, None, :] - mean)
        mixed = q[..., i, :, None] * total
        output[..., i, :] = (mixed * mean).sum(axis=-2) / mixed.sum(axis=-2)
    return output.astype(query.dtype)


def normalised_queries(query, key, value):
    """Find all denominators first, and divide the queries by them."""
    q, k, v = featured(query, key, value)
    q = q / (q * np.cumsum(k, axis=-2)).sum(axis=-1, keepdims=True)
    return (np.tril(q @ k.mT) @ v).astype(query.dtype)


def wider(query, key, value):
    """Compute in float64 whatever comes, and round once."""
    q, k, v = (x.astype(np.float64) for x in (query, key, value))
    scores = np.tril(elu_plus_one(q) @ elu_plus_one(k).mT)
    return ((scores @ v) / scores.sum(axis=-1, keepdims=True)).astype(query.dtype)


KERNELS = {
    kernel.__name__: kernel
    for kernel in (
        two_level_scan,
        compensated,
        means_by_feature,
        normalised_queries,
        wider,
    )
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    in_turn(
        lambda name, dtype: (
            name in ("two_level_scan", "normalised_queries") and dtype == "float32"
        ),
        product(KERNELS, ("float32", "float64", "bfloat16")),
    ),
)
def test_no_false_alarm(name, dtype):
    plan = plan_of(
        KERNELS[name],
        op="linear_attention",
        checks=SHARP,
        profile="quick",
        dtypes=(dtype,),
        shrink=False,
        diagnose=False,
    )
    results = [e.result for e in run(plan) if isinstance(e, CheckFinished)]
    wrong = {r.name: r.message for r in results if r.verdict != "passed"}
    assert wrong == {}
