"""Every operator is what its equation says, in every form."""

import inspect
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import linkern
from linkern import State
from linkern.operators.register import DEFINITIONS
from tests.operators.paper_loops import FIELDS
from tests.operators.problems import (
    CLASSES,
    NAMES,
    close,
    expected,
    operator,
    parts,
    problem,
)

FORMS = (
    {"form": "recurrent"},
    {"form": "parallel"},
    {"chunk_size": 1},
    {"chunk_size": 5},
    {"chunk_size": 16},
    {},
)
EXTREMES = (0.0, -1e-4, -1.0, -5.0, -20.0, -88.0, -1e4, -np.inf)
DECAYING = tuple(name for name in NAMES if "log_decay" in FIELDS[name])


def seeds():
    return st.integers(0, 2**16).map(np.random.default_rng)


def agrees(result, due):
    output, state = due
    close(result.output, output)
    for got, part in zip(parts(result.state), state, strict=True):
        close(got, part)


def test_there_is_a_loop_for_every_operator():
    import linkern.operators

    others = {"linear_attention_step", "ssd"}
    assert set(linkern.operators.__all__) - others == set(NAMES) == set(DEFINITIONS)
    assert linkern.ssd is linkern.simple_gla


@pytest.mark.parametrize("name", NAMES)
def test_every_form_is_the_plain_loop(name):
    @settings(max_examples=25)
    @given(
        rng=seeds(),
        length=st.integers(1, 12) | st.sampled_from([31, 33]),
        form=st.sampled_from(FORMS),
        dims=st.sampled_from([(4, 3), (1, 1), (3, 5)]),
    )
    def law(rng, length, form, dims):
        inputs = problem(name, rng, length, key_dim=dims[0], value_dim=dims[1])
        agrees(operator(name)(**inputs, **form), expected(name, inputs))

    law()


@pytest.mark.parametrize("name", NAMES)
def test_no_token_at_all(name):
    inputs = problem(name, np.random.default_rng(0), 1)
    none = {
        key: x if DEFINITIONS[name].axes[key][:1] not in ("t", "s") else x[:, :, :0]
        for key, x in inputs.items()
    }
    for form in FORMS:
        result = operator(name)(**none, **form)
        assert result.output.shape == (*inputs["value"].shape[:2], 0, 3)
        empty = operator(name)(**inputs).state
        for got, like in zip(parts(result.state), parts(empty), strict=True):
            assert got.shape == like.shape
            assert not got[np.isfinite(got)].any()


@pytest.mark.parametrize("name", NAMES)
def test_a_sequence_may_be_cut_anywhere(name):
    """The split law, at every cut of a short sequence, the ends among them."""
    length = 9
    inputs = problem(name, np.random.default_rng(1), length)
    whole = operator(name)(**inputs, chunk_size=4)
    for cut in range(length + 1):
        first, second = (
            tokens(name, inputs, s) for s in (slice(cut), slice(cut, None))
        )
        position = {"position": 0} if name == "log_linear_attention" else {}
        one = operator(name)(**first, **position, chunk_size=4)
        if position:
            position["position"] = cut
        two = operator(name)(
            **second, **position, initial_state=one.state, chunk_size=2
        )
        close(np.concatenate([one.output, two.output], axis=-2), whole.output)
        for got, due in zip(parts(two.state), parts(whole.state), strict=True):
            close(got, due)


def tokens(name, inputs, span):
    """Some tokens of a problem; what belongs to no token stays."""
    letters = DEFINITIONS[name].axes
    found = {}
    for key, x in inputs.items():
        of = letters.get(key, "t")[:1]
        if of not in ("t", "s"):
            found[key] = x
            continue
        start, stop, _ = span.indices(
            inputs["value"].shape[2] // (2 if of == "s" else 1)
        )
        rows = 2 if of == "s" else 1
        found[key] = x[:, :, start * rows : stop * rows]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_decoding_is_the_recurrent_form_bitwise(name):
    inputs = problem(name, np.random.default_rng(2), 5)
    whole = operator(name)(**inputs, form="recurrent")
    state = None
    for t in range(5):
        at = tokens(name, inputs, slice(t, t + 1))
        squeezed = {
            key: x[:, :, 0] if DEFINITIONS[name].axes[key][:1] == "t" else x
            for key, x in at.items()
        }
        where = {"position": t} if name == "log_linear_attention" else {}
        result = linkern.step(operator(name), state, **squeezed, **where)
        state = result.state
        if name in (
            "abc",
            "rwkv4",
            "mesa",
            "gsa",
            "mlstm",
            "mamba3",
            "mamba3_mimo",
        ):  # a scan, a solve or a write besides
            close(result.output, whole.output[:, :, t])
        else:
            np.testing.assert_array_equal(result.output, whole.output[:, :, t])


@pytest.mark.parametrize("name", NAMES)
def test_packed_sequences_are_separate_calls_bitwise(name):
    """Empty and one-token sequences, unaligned starts, and slack rows of NaN."""
    ends = (0, 3, 3, 4, 11)
    inputs = problem(name, np.random.default_rng(3), 13)
    for key, x in inputs.items():
        if DEFINITIONS[name].axes[key][:1] in ("t", "s"):
            x[:, :, -2 * (x.shape[2] // 13) :] = np.nan
    packed = operator(name)(**inputs, cu_seqlens=ends, chunk_size=4)
    assert not packed.output[:, :, 11:].any()
    for n, span in enumerate(slice(*s) for s in pairwise(ends)):
        alone = operator(name)(**tokens(name, inputs, span), chunk_size=4)
        np.testing.assert_array_equal(packed.output[:, :, span], alone.output)
        for got, due in zip(parts(packed.state), parts(alone.state), strict=True):
            np.testing.assert_array_equal(got[n], due)
    again = operator(name)(
        **inputs, cu_seqlens=np.asarray(ends), initial_state=packed.state, chunk_size=4
    )
    last = State(*(None if x is None else x[3] for x in packed.state))
    alone = operator(name)(
        **tokens(name, inputs, slice(4, 11)), initial_state=last, chunk_size=4
    )
    np.testing.assert_array_equal(again.output[:, :, 4:11], alone.output)


def test_a_nan_stays_in_its_sequence():
    inputs = problem("kda", np.random.default_rng(4), 8)
    inputs["value"][:, :, 2] = np.nan
    output = linkern.kda(**inputs, cu_seqlens=[0, 3, 8]).output
    assert np.isnan(output[:, :, 2]).all()
    assert np.isfinite(output[:, :, 3:]).all()


@pytest.mark.parametrize("name", DECAYING)
@pytest.mark.parametrize("strength", EXTREMES)
def test_no_decay_overflows_or_spoils_what_it_does_not_forget(name, strength):
    """Constant decays, and the same mixed with weak ones, against the plain loop."""
    rng = np.random.default_rng(5)
    inputs = problem(name, rng, 40)
    shape = inputs["log_decay"].shape
    mixed = np.where(
        rng.random(shape) < 0.3, strength, -abs(rng.normal(size=shape)) / 10
    )
    for decays in (np.full(shape, strength), mixed):
        inputs["log_decay"] = decays
        with np.errstate(all="raise", under="ignore"):
            results = [operator(name)(**inputs, **form) for form in FORMS]
        due = expected(name, inputs)
        for result in results:
            agrees(result, due)


@pytest.mark.parametrize("name", CLASSES)
def test_every_array_library_computes_the_same(eager_lib, name):
    lib = eager_lib
    inputs = problem(name, np.random.default_rng(6), 21)
    for form in ({"form": "recurrent"}, {"form": "parallel"}, {"chunk_size": 8}):
        result = operator(name)(**{k: lib.array(x) for k, x in inputs.items()}, **form)
        state = State(*(None if x is None else lib.numpy(x) for x in result.state))
        agrees(
            linkern.AttentionResult(lib.numpy(result.output), state),
            expected(name, inputs),
        )


@pytest.mark.parametrize("name", ["simple_gla", "kda", "rwkv4"])
def test_jax_compiles_and_computes_the_same(jax, name):
    inputs = problem(name, np.random.default_rng(6), 21)
    arrays = {k: jax.numpy.asarray(x) for k, x in inputs.items()}
    result = jax.jit(lambda x: operator(name)(**x, chunk_size=8))(arrays)
    state = State(*(None if x is None else np.asarray(x) for x in result.state))
    got = linkern.AttentionResult(np.asarray(result.output), state)
    agrees(got, expected(name, inputs))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_half_precision_is_accumulated_in_single(name, dtype):
    inputs = {
        k: x.astype(dtype) for k, x in problem(name, np.random.default_rng(7)).items()
    }
    result = operator(name)(**inputs)
    assert result.output.dtype == np.dtype(dtype)
    assert all(x.dtype == np.float32 for x in parts(result.state))


GROUPED = ("simple_gla", "gated_delta_rule", "kda", "comba", "gated_delta_product")


@pytest.mark.parametrize("name", GROUPED)
def test_value_heads_share_queries_and_keys_in_groups(name):
    inputs = problem(name, np.random.default_rng(8), heads=4)
    shared = dict(inputs)
    for key in ("query", "key", "auxiliary_key"):
        if key in inputs:
            shared[key] = inputs[key][:, :2]
            inputs[key] = np.repeat(inputs[key][:, :2], 2, axis=1)
    np.testing.assert_array_equal(
        operator(name)(**shared).output, operator(name)(**inputs).output
    )


NEUTRAL = {
    "log_decay": 0.0,
    "beta": 1.0,
    "bonus": 0.0,
    "erase_gate": 1.0,
    "write_gate": 1.0,
    "removal_rate": 1.0,
    "dt": 1.0,
    "log_decay_rate": 0.0,
    "skip": 0.0,
    "input_gate": 0.0,
    "angle": 0.0,
    "trapezoid": 1.0,
    "preconditioner_log_decay": 0.0,
    "preconditioner_beta": 1.0,
    "momentum_log_decay": 0.0,
    "momentum_beta": 1.0,
    "center": -0.2,
    "log_range": math.log(1.5),
    "ridge": 1.0,
    "level_scales": 1.0,
}


@pytest.mark.parametrize("form", FORMS[:4], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_none_is_the_neutral_value_exactly(name, form):
    inputs = problem(name, np.random.default_rng(9))
    optional = [key for key in inputs if key not in DEFINITIONS[name].required]
    for key in optional:
        neutral = {**inputs, key: np.full_like(inputs[key], NEUTRAL[key])}
        missing = {**inputs, key: None}
        if name in (
            "kda",
            "preconditioned_kda",
            "gla",
            "rwkv6",
            "rwkv7",
            "dplr",
            "gdn2",
            "oja",
            "hgrn",
            "gsa",
            "selective_scan",
        ):
            # A decay of each channel is summed by halves, no decay all at once.
            close(
                operator(name)(**missing, **form).output,
                operator(name)(**neutral, **form).output,
            )
        else:
            one, other = (
                operator(name)(**x, **form).output for x in (missing, neutral)
            )
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_the_signature_names_every_option(name):
    names = list(inspect.signature(operator(name)).parameters)
    assert names[-5:] == ["scale", "initial_state", "cu_seqlens", "form", "chunk_size"]
    with pytest.raises(TypeError, match=f"`scales` is not an argument of {name}"):
        operator(name)(**problem(name, np.random.default_rng(0), 2), scales=1.0)


@pytest.mark.parametrize("name", [n for n in NAMES if "query" in FIELDS[n]])
def test_the_scale_is_a_factor_on_the_query(name):
    inputs = problem(name, np.random.default_rng(10))
    close(
        operator(name)(**inputs, scale=0.5).output,
        expected(name, inputs, scale=0.5)[0],
    )


@pytest.mark.parametrize("form", FORMS[:4], ids=str)
@pytest.mark.parametrize("plain", ["gated_delta_rule", "kda"])
def test_a_range_of_zero_is_the_plain_delta_rule_bitwise(plain, form):
    name = f"preconditioned_{plain}"
    inputs = problem(name, np.random.default_rng(2), 11)
    inputs["log_range"][:] = 0
    shared = {key: inputs[key] for key in FIELDS[plain]}
    result = operator(name)(**inputs, **form)
    expected = operator(plain)(**shared, **form)
    np.testing.assert_array_equal(result.output, expected.output)
    np.testing.assert_array_equal(result.state.memory, expected.state.memory)
    # The sums are those of HGRN, of the squares.
    rates = inputs["preconditioner_beta"][..., None]
    squares = rates * inputs["key"] ** 2
    decays = inputs["preconditioner_log_decay"][..., None]
    wide = np.broadcast_to(decays, squares.shape)
    sums = linkern.hgrn(squares, wide, **form).state.memory[..., 0, :]
    np.testing.assert_allclose(result.state.normalizer, sums, rtol=1e-13)
