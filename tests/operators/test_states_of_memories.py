"""Initial states of mLSTM and selective scan, and the mLSTM without gates."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import linkern
from linkern import State
from tests.operators.problems import close, problem

FORMS = ({"form": "recurrent"}, {"form": "parallel"}, {"chunk_size": 3}, {})
in_every_form = pytest.mark.parametrize("form", FORMS, ids=str)
seeds = st.integers(0, 2**16).map(np.random.default_rng)
lengths = st.sampled_from([1, 2, 3, 4, 7, 16])


def same(result, expected):
    close(result.output, expected.output)
    for got, part in zip(result.state, expected.state, strict=True):
        close(got, part)


@in_every_form
def test_a_memory_of_mlstm_counts_with_the_weight_beside_it(form):
    """``(C e^c, n e^c, z - c)`` is the state ``(C, n, z)``, whatever c is."""

    @settings(max_examples=20)
    @given(rng=seeds, length=lengths, shift=st.floats(-30, 30))
    def law(rng, length, shift):
        inputs = problem("mlstm", rng, length)
        memory, weight = rng.normal(size=(1, 2, 4, 4)), rng.normal(size=(1, 2, 1))
        other = State(memory * np.exp(shift), weight - shift)
        results = [
            linkern.mlstm(**inputs, initial_state=state, **form)
            for state in (State(memory, weight), other)
        ]
        close(results[1].output, results[0].output)
        # What is left of the state is over another weight; their product is not.
        totals = [
            x.state.memory * np.exp(x.state.normalizer)[..., None] for x in results
        ]
        close(totals[1], totals[0])

    law()


@in_every_form
def test_a_memory_of_mlstm_without_weight_is_none(form):
    inputs = problem("mlstm", np.random.default_rng(1), 7)
    memory = np.random.default_rng(2).normal(size=(1, 2, 4, 4))
    empty = State(memory, np.full((1, 2, 1), -np.inf))
    same(linkern.mlstm(**inputs, initial_state=empty, **form), linkern.mlstm(**inputs))


@in_every_form
def test_mlstm_without_input_gates_is_simple_gla_where_the_floor_divides(form):
    @settings(max_examples=20)
    @given(rng=seeds, length=lengths)
    def law(rng, length):
        inputs = problem("mlstm", rng, length)
        del inputs["input_gate"]
        # Scores add up to less than one: 4 channels and at most 16 keys, below 8 each.
        inputs["query"] = np.sign(inputs["query"]) * 2.0**-10
        assert abs(inputs["key"]).max() < 8
        result, plain = linkern.mlstm(**inputs, **form), linkern.simple_gla(**inputs)
        # The output is as small as its queries.
        close(2.0**10 * result.output, 2.0**10 * plain.output)
        total = np.exp(result.state.normalizer)[..., None]
        close(total * result.state.memory[..., :-1], plain.state.memory)

    law()


@in_every_form
def test_a_memory_of_the_scan_decays_by_the_sum_of_its_steps(form):
    """Beside no input, ``o_t = q_t^T (e^{A (dt_1 + .. + dt_t)} * S)``."""

    @settings(max_examples=20)
    @given(rng=seeds, length=lengths)
    def law(rng, length):
        inputs = problem("selective_scan", rng, length)
        inputs["value"] = np.zeros_like(inputs["value"])
        memory = rng.normal(size=(1, 2, 4, 3))
        result = linkern.selective_scan(**inputs, initial_state=memory, **form)
        steps = np.cumsum(inputs["dt"], axis=-2)  # (B, H, T, V)
        rates = np.swapaxes(inputs["log_decay_rate"], -1, -2)  # (H, K, V)
        left = np.exp(rates[:, None] * steps[..., None, :]) * memory[:, :, None]
        close(result.output, np.einsum("bhtk,bhtkv->bhtv", inputs["query"], left))
        close(result.state.memory, left[:, :, -1])

    law()


@in_every_form
def test_a_memory_of_the_scan_adds_to_what_is_read_without_it(form):
    @settings(max_examples=20)
    @given(rng=seeds, length=lengths)
    def law(rng, length):
        inputs = problem("selective_scan", rng, length)
        memory = rng.normal(size=(1, 2, 4, 3))
        silent = inputs | {"value": np.zeros_like(inputs["value"])}
        whole, alone = (
            linkern.selective_scan(**x, initial_state=memory, **form)
            for x in (inputs, silent)
        )
        none = linkern.selective_scan(**inputs, **form)
        close(whole.output, none.output + alone.output)
        close(whole.state.memory, none.state.memory + alone.state.memory)

    law()
