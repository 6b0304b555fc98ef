"""A keyword of another library is answered with the argument that it stands for."""

import inspect
from functools import partial

import numpy as np
import pytest

import linkern
from linkern import validate
from linkern.operators.register import DEFINITIONS
from linkern.oracle import OPERATORS
from linkern.validate.keywords import keywords

X = np.ones((2, 5, 3))
LOG_DECAY = r"did you mean `log_decay` \(natural logarithm, <= 0\)\?"


def refusal(op, keyword):
    with pytest.raises(TypeError) as caught:
        keywords(op, [keyword], inspect.signature(getattr(linkern, op)).parameters)
    return str(caught.value)


@pytest.mark.parametrize("name", sorted(DEFINITIONS))
def test_every_alias_that_the_referee_knows_has_an_answer(name):
    """The words are shared with the referee, and so no code has to be."""
    record = OPERATORS[name]
    meant = {}  # a name may stand for several inputs
    for one in record.inputs:
        for alias in one.aliases:
            meant.setdefault(alias, set()).add(one.name)
    for alias in meant.keys() - set(record.names):
        answer = refusal(name, alias).partition("did you mean `")[2]
        assert answer.partition("`")[0] in meant[alias]


@pytest.mark.parametrize(
    ("op", "keyword", "answer"),
    [
        ("gated_delta_rule", "g", "did you mean `log_decay` (natural logarithm, <= 0)"),
        ("gla", "gk", "did you mean `log_decay`"),
        ("simple_gla", "alpha", "did you mean `log_decay`"),
        ("gdn2", "b", "did you mean `erase_gate`"),
        ("kda", "b", "did you mean `beta`?"),
        ("gla", "q", "did you mean `query`?"),
        ("gla", "h0", "did you mean `initial_state` (a `State`, memory (..., K, V))?"),
        ("gla", "cu_seqlen", "did you mean `cu_seqlens` (offsets"),
        ("gla", "scale_factor", "did you mean `scale`?"),
        ("gla", "chunksize", "did you mean `chunk_size`?"),
        ("linear_attention", "is_causal", "did you mean `causal`?"),
        ("gla", "is_causal", "leave it out: this operator is causal."),
        ("gla", "head_first", "pass x.swapaxes(-3, -2)."),
        ("gla", "output_final_state", "every result has its `state`."),
        ("kda", "use_qk_l2norm_in_kernel", "divide `query` and `key` by their norms"),
        ("rwkv4", "q", "known: key, value, log_decay, bonus, scale,"),
    ],
)
def test_the_answer_to_a_keyword(op, keyword, answer):
    sentence = refusal(op, keyword)
    assert sentence.startswith(f"`{keyword}` is not an argument of {op}; ")
    assert answer in sentence


@pytest.mark.parametrize(
    "call",
    [
        lambda: linkern.gla(X, X, X, g=X),
        lambda: linkern.step(linkern.gla, None, X, X, X, g=X),
        lambda: linkern.vjp(linkern.gla, X, X, X, g=X),
        lambda: linkern.vjp(partial(linkern.gla, X), X, X, g=X),
        lambda: linkern.span_map(linkern.gla, X, X, X, g=X),
        lambda: linkern.attention_weights(linkern.gla, X, X, X, g=X),
    ],
)
def test_every_way_to_call_an_operator_answers(call):
    with pytest.raises(TypeError, match=LOG_DECAY):
        call()


def test_unknown_keywords_come_before_missing_inputs():
    with pytest.raises(TypeError, match="did you mean `query`"):
        linkern.gla(q=X, k=X, v=X)


def test_functions_that_take_anything_are_left_alone():
    def anything(query, **options):
        return linkern.gla(query, query, query, options["g"])

    result, _ = linkern.vjp(anything, X, g=-X)
    assert result.output.shape == X.shape
    validate.keywords("f", ["g"], inspect.signature(anything).parameters)


def test_a_step_takes_its_state_once():
    token = X[:, 0]
    with pytest.raises(ValueError, match="pass it after `op`"):
        linkern.step(linkern.gla, None, token, token, token, initial_state=X)
