"""Delta rules with one term wrong: what rows erase of a source, or what they read."""

from dataclasses import replace

import numpy as np
import pytest

import linkern
from linkern.testing.diagnosis.diagnose import diagnose
from linkern.testing.diagnosis.erase_views import erased, read, written
from linkern.testing.influence.readings import output_map
from linkern.testing.influence.scenes import dense_scene, product_scene
from linkern.testing.kernels.assembly import recurrence
from tests.marks import every
from tests.testing.diagnosis.test_observed import opened

pytestmark = pytest.mark.usefixtures("exact_answers", "no_clock")

ERASE, SCORE = "erase of each source by each row", "score of each row with each source"


def unchanged(terms, **inputs):
    return terms


def kernel_of(op, erase=unchanged, score=unchanged):
    """Return a delta rule that solves one system for all tokens.

    Both terms, ``(B, H, T, T)``, may be changed.
    """
    early = op == "comba"

    def kernel(query, key, value, log_decay, beta, auxiliary_key=None):
        dtype, inputs = value.dtype, {"beta": beta, "log_decay": log_decay}
        query, key, value, log_decay, beta = (
            x.astype(np.float64) for x in (query, key, value, log_decay, beta)
        )
        log_decay = np.maximum(log_decay, -1e4)
        reads = key if auxiliary_key is None else auxiliary_key.astype(np.float64)
        decays = log_decay if log_decay.ndim == 4 else log_decay[..., None]
        sums = np.cumsum(decays, axis=2)
        before = sums - decays if early else sums

        def pairs(rows, upto):
            apart = np.minimum(upto[:, :, :, None] - sums[:, :, None], 0)
            return (rows[:, :, :, None] * key[:, :, None] * np.exp(apart)).sum(-1)

        erases = np.tril(pairs(beta[..., None] * reads, before), -1)
        scores = np.tril(pairs(query, sums)) * key.shape[-1] ** -0.5
        erases, scores = erase(erases, **inputs), score(scores, **inputs)
        written = beta[..., None] * value
        for row in range(1, key.shape[2]):
            written[..., row, :] -= (erases[..., row, None, :] @ written)[..., 0, :]
        return (scores @ written).astype(dtype)

    def comba(query, key, value, auxiliary_key, log_decay, beta):
        return kernel(query, key, value, log_decay, beta, auxiliary_key)

    return comba if early else kernel


def change_where(chosen, changed):
    """Return a change of the pairs of rows and sources that are chosen."""

    def change(terms, **inputs):
        row, source = np.ogrid[: terms.shape[-2], : terms.shape[-1]]
        return np.where(chosen(row, source), changed(terms, **inputs), terms)

    return change


def within(size, changed):
    """Return a change of pairs inside chunks of a size."""
    return change_where(
        lambda row, source: (row // size == source // size) & (row != source), changed
    )


def of_chunk(size, changed):
    """Return a change of pairs inside chunks of a size, and of tokens themselves."""
    return change_where(lambda row, source: row // size == source // size, changed)


def across(size, changed):
    """Return a change of pairs of different chunks of a size."""
    return change_where(lambda row, source: row // size != source // size, changed)


def without_rate(terms, beta, **_):
    return terms / beta[..., :, None]


def of_other_rate(terms, beta, **_):
    return terms / beta[..., :, None] * beta[..., None, :]


def decayed_once_more(terms, log_decay, **_):
    return terms * np.exp(log_decay)[..., :, None]


def undecayed_from_source(terms, log_decay, **_):
    return terms * np.exp(-log_decay)[..., :, None]


def halved(terms, **_):
    return terms / 2


def nothing(terms, **_):
    return 0 * terms


INSIDE, ACROSS = "pairs inside chunks of {}", "pairs across edges of chunks of {}"
# By operator and term: the change, the words of its place and of its factor.
CHANGES = [
    ("gated_delta_rule", "erase", across, 16, without_rate, "1 / beta[row]"),
    (
        "gated_delta_rule",
        "erase",
        within,
        32,
        of_other_rate,
        "beta[source] / beta[row]",
    ),
    ("gated_delta_rule", "erase", within, 64, nothing, "0"),
    ("gated_delta_rule", "erase", across, 64, nothing, "0"),
    ("gated_delta_rule", "score", within, 32, decayed_once_more, "exp(log_decay[row])"),
    (
        "gated_delta_rule",
        "score",
        across,
        16,
        undecayed_from_source,
        "exp(-log_decay[row])",
    ),
    ("kda", "erase", within, 16, without_rate, "1 / beta[row]"),
    ("comba", "score", of_chunk, 16, halved, "1/2"),
    ("kda", "erase", across, 32, nothing, "0"),
    ("comba", "erase", within, 32, decayed_once_more, "exp(log_decay[row])"),
    ("comba", "score", within, 16, decayed_once_more, "exp(log_decay[row])"),
    ("gated_delta_rule", "score", of_chunk, 32, nothing, "0"),
]


@pytest.mark.parametrize("op", every(3, ["comba", "gated_delta_rule", "kda"], slow=0))
def test_nothing_is_wrong_in_terms_that_are_right(op):
    assert diagnose(*opened(kernel_of(op), op)) is None


@pytest.mark.parametrize(
    ("op", "term", "place", "size", "change", "by_what"), every(4, CHANGES, slow=0.25)
)
def test_a_factor_of_one_term_is_named(op, term, place, size, change, by_what):
    kernel = kernel_of(op, **{term: place(size, change)})
    diagnosis = diagnose(*opened(kernel, op))
    assert diagnosis.stage == (ERASE if term == "erase" else SCORE)
    assert diagnosis.where == (ACROSS if place is across else INSIDE).format(size)
    assert diagnosis.by_what == by_what
    assert diagnosis.hint


def of_every_source(terms, log_decay, **_):
    return terms * np.exp(2 * log_decay)[..., None, :]


@pytest.mark.parametrize("op", every(2, ["gated_delta_rule", "comba"]))
def test_a_factor_of_what_a_token_writes_is_in_both_terms(op):
    kernel = kernel_of(op, erase=of_every_source, score=of_every_source)
    diagnosis = diagnose(*opened(kernel, op))
    assert diagnosis.stage == "write of each token"
    assert diagnosis.where == "everywhere"
    assert diagnosis.by_what == "exp(2 * log_decay[source])"


def gdn2(query, key, value, log_decay, erase_gate, write_gate):
    gates = {"erase_gate": erase_gate, "write_gate": write_gate}
    return linkern.gdn2(query, key, value, log_decay=log_decay, **gates).output


OPERATORS = ["delta_rule", "gated_delta_rule", "kda", "comba", "rwkv7", "dplr", "iplr"]


@pytest.mark.parametrize("op", [*OPERATORS, "gdn2"])
@pytest.mark.parametrize("view", [erased, read])
def test_terms_of_an_operator_are_as_exact_as_its_weights(op, view):
    target, scope = opened(gdn2 if op == "gdn2" else recurrence(op), op)
    rng = np.random.default_rng(0)
    one = output_map(target, product_scene(scope, (1, 2, 40, 4, 40), rng))
    assert not written(one).wrong.any()
    terms = view(one)
    assert len(terms.exact) == 2 * 4 * 10 * 9 / 2
    assert not terms.wrong.any()
    assert np.median(terms.bound / abs(terms.exact)) < 2**-8


def test_there_are_no_terms_of_a_token_without_weight_in_its_own_row():
    target, scope = opened(recurrence("delta_rule"), "delta_rule")
    rng = np.random.default_rng(0)
    one = output_map(target, product_scene(scope, (1, 2, 24, 4, 24), rng))
    itself = (one.coordinates["row"] == 3) & (one.coordinates["source"] == 3)
    weights = {"exact": one.exact, "measured": one.measured}
    lost = replace(one, **{name: np.where(itself, 0, x) for name, x in weights.items()})
    assert erased(one) is not None
    assert erased(lost) is read(lost) is written(lost) is None


def test_a_wrong_term_beside_them_hides_what_tokens_write():
    kernel = kernel_of("gated_delta_rule", of_every_source, of_every_source)
    both = kernel_of("gated_delta_rule", without_rate, of_every_source)
    for one, told in ((kernel, True), (both, False)):
        target, scope = opened(one, "gated_delta_rule")
        rng = np.random.default_rng(0)
        weights = output_map(target, product_scene(scope, (1, 2, 24, 4, 24), rng))
        assert (written(weights) is not None) == told


def test_there_are_no_terms_of_weights_that_are_sums_or_incomplete():
    target, scope = opened(recurrence("delta_rule"), "delta_rule")
    rng = np.random.default_rng(0)
    dense = output_map(target, dense_scene(scope, (1, 2, 24, 4, 24), rng))
    some = output_map(target, product_scene(scope, (1, 2, 24, 4, 6), rng))
    for view in (erased, read, written):
        assert view(dense) is view(some) is None


@pytest.mark.parametrize(
    "op", ["oja", "gated_delta_product", "momentum_delta_rule", "gla"]
)
def test_there_are_no_terms_of_other_recurrences(op):
    target, scope = opened(recurrence(op), op)
    rng = np.random.default_rng(0)
    one = output_map(target, product_scene(scope, (1, 2, 24, 4, 24), rng))
    assert erased(one) is read(one) is written(one) is None
