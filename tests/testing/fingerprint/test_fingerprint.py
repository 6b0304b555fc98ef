"""The precision sheet of kernels whose arithmetic is known."""

import json
from itertools import product

import numpy as np
import pytest
from rich.console import Console

from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing import OPERATORS, Contract
from linkern.testing.errors import TargetDied, TargetRaised
from linkern.testing.fingerprint import (
    Fingerprint,
    fingerprint,
    sheet,
)
from linkern.testing.fingerprint.invariance import (
    BATCH,
    DECODED,
    PACKED,
    SPLIT,
    ulps,
)
from linkern.testing.kernels import correct
from linkern.testing.kernels.assembly import (
    Parts,
    assemble,
    packed,
    recurrence,
)
from linkern.testing.problems.context import Scope
from linkern.testing.target.process import InProcess
from linkern.testing.target.protocol import TargetConfig
from tests.marks import in_turn, slow_unless
from tests.testing.linear_kernels import CORRECT, FAULTY

pytestmark = pytest.mark.usefixtures("exact_answers")

DTYPES = ("float32", "float64", "bfloat16", "float16")


def in_float32(*case):
    return case[-1] == "float32"


STAGES = ("value", "key", "query", "score", "sum", "state", "normalizer")
# The stages that each defect narrows, to how many bits, and what is to be declared.
NARROWED = {
    "bfloat16_state": (("state", "normalizer"), 8, "state_dtype=bfloat16"),
    "tfloat32_state": (("state", "normalizer"), 11, "state_dtype=float16"),
    "bfloat16_normalizer": (("normalizer",), 8, "normalizer_dtype=bfloat16"),
    "bfloat16_scores": (("score", "key", "query"), 8, "score_dtype=bfloat16"),
    "tfloat32_operands": (("value", "key"), 11, "operand_dtype=tfloat32"),
}
CHUNKS = {
    "chunk_16": 16,
    "chunk_64_packed": 64,
    "chunk_100": 100,
    "chunk_32_with_state": 32,
    "textbook_features": 32,
    "multiplies_by_reciprocal": 64,
}


def take(
    function, dtype="float32", op="linear_attention", framework="numpy", **declared
):
    pytest.importorskip("ml_dtypes") if dtype == "bfloat16" else None
    contract = Contract.from_mapping(declared)
    environment = TargetConfig(
        "test:kernel", framework, layout=contract.layout, scale=contract.scale
    )
    target = InProcess(environment, function)
    return fingerprint(target, Scope(OPERATORS[op], contract, dtype))


def accumulator(dtype):
    return 53 if dtype == "float64" else 24


def rounded_to(dtype):
    bits = SIGNIFICAND_BITS[dtype]

    def rounded(x):
        mantissa, exponent = np.frexp(x)
        kept = np.rint(mantissa * 2.0**bits)
        return np.ldexp(kept, exponent - bits).astype(x.dtype, copy=False)

    return rounded


def wide(*arrays):
    return [x.astype(np.result_type(x.dtype, np.float32)) for x in arrays]


def identity(query, key, value, *, eps=0.0, in_normalizer=0.0, scale=1.0):
    q, k, v = wide(query, key, value)
    scores = np.tril(scale * q @ np.swapaxes(k, -1, -2))
    total = scores.sum(-1, keepdims=True) + scale * in_normalizer * q.sum(
        -1, keepdims=True
    )
    return (scores @ v / (total + np.asarray(eps, q.dtype))).astype(query.dtype)


def not_normalised(query, key, value, *, carried=lambda x: x):
    q, k, v = wide(query, key, value)
    q = q * np.asarray(q.shape[-1] ** -0.5, q.dtype)
    memory = np.zeros((*k.shape[:-2], k.shape[-1], v.shape[-1]), q.dtype)
    output = np.zeros_like(v)
    for first in range(0, q.shape[-2], 64):
        span = (..., slice(first, first + 64), slice(None))
        scores = np.tril(q[span] @ np.swapaxes(k[span], -1, -2))
        output[span] = q[span] @ memory + scores @ v[span]
        memory = carried(memory + np.swapaxes(k[span], -1, -2) @ v[span])
    return output.astype(query.dtype)


def not_causal(query, key, value, *, carried=lambda x: x):
    q, k, v = wide(query, key, value)
    q, k = (np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in (q, k))
    memory = carried(np.swapaxes(k, -1, -2) @ v)
    return (q @ memory / (q @ k.sum(-2)[..., None])).astype(query.dtype)


def all_in_bfloat16(query, key, value):
    """One token after the other, each sum rounded."""
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    q, k, v = (x.astype(bfloat16) for x in (query, key, value))
    one, zero = bfloat16(1), bfloat16(0)
    q, k = (np.where(x > 0, x + one, np.exp(np.minimum(x, zero))) for x in (q, k))
    memory = np.zeros((*k.shape[:-2], k.shape[-1], v.shape[-1]), bfloat16)
    z = np.zeros((*k.shape[:-2], k.shape[-1]), bfloat16)
    output = np.zeros_like(v)
    for i in range(q.shape[-2]):
        memory = memory + k[..., i, :, None] * v[..., i, None, :]
        z = z + k[..., i, :]
        n, d = zero, zero
        for feature in range(q.shape[-1]):
            weight = q[..., i, feature, None]
            n = n + weight * memory[..., feature, :]
            d = d + weight * z[..., feature, None]
        output[..., i, :] = n / d
    return output.astype(query.dtype)


@pytest.mark.parametrize(
    ("name", "dtype"),
    in_turn(in_float32, product(CORRECT, DTYPES)),
)
def test_nothing_is_lost_or_contradicted_in_a_correct_kernel(name, dtype):
    found = take(CORRECT[name], dtype)
    whole = accumulator(dtype)
    if SIGNIFICAND_BITS[dtype] == whole:
        assert found.bits == dict.fromkeys(STAGES, whole)
    assert {n for s, n in found.bits.items() if s not in found.capped} <= {whole}
    # Inputs of few bits show no more than those, and products of two of them.
    least = min(whole, SIGNIFICAND_BITS[dtype])
    assert all(n >= least for n in found.bits.values())
    assert found.contradicted == ()
    assert found.eps is None
    assert found.chunk_size == CHUNKS.get(name)


@pytest.mark.parametrize(
    ("name", "dtype"),
    in_turn(in_float32, product(NARROWED, DTYPES)),
)
def test_a_narrow_stage_is_measured_and_contradicts_the_declaration(name, dtype):
    found = take(FAULTY[name], dtype)
    stages, bits, declared = NARROWED[name]
    assert {found.bits[stage] for stage in stages} <= {
        min(bits, found.bits["value"]),
        bits,
    }
    if SIGNIFICAND_BITS[dtype] >= 24:
        others = set(STAGES) - {"normalizer", "state", *STAGES[:4]}
        assert {found.bits[stage] for stage in others} == {accumulator(dtype)}
        (sentence,) = found.contradicted
        assert f"{bits} bits" in sentence
        assert declared in sentence


def test_a_contradiction_says_what_to_declare():
    found = take(FAULTY["bfloat16_state"])
    assert found.contradicted[0] == (
        "`state_dtype` is float32 (24 bits) and `normalizer_dtype` is float32 (24 "
        "bits), but the state and normalizer are rounded to 8 bits (bfloat16) every 16 "
        "tokens: declare chunk_size=16 state_dtype=bfloat16 normalizer_dtype=bfloat16"
    )
    declared = {"state_dtype": "bfloat16", "normalizer_dtype": "bfloat16"}
    assert not take(FAULTY["bfloat16_state"], **declared).contradicted


ALL_NARROW = {
    "operand_dtype": "tfloat32",
    "score_dtype": "bfloat16",
    "state_dtype": "tfloat32",
    "normalizer_dtype": "bfloat16",
}


@pytest.mark.parametrize(
    ("chunk", "key_dims", "dtype"),
    in_turn(in_float32, product([1, 2, 128], ["4", "3,8"], DTYPES)),
)
def test_what_is_declared_is_not_contradicted(chunk, key_dims, dtype):
    kernel = assemble(
        Parts(
            chunk=chunk,
            operand=rounded_to("tfloat32"),
            scores=rounded_to("bfloat16"),
            carried=rounded_to("tfloat32"),
            normalizer=rounded_to("bfloat16"),
        )
    )
    found = take(kernel, dtype, key_dims=key_dims, **ALL_NARROW)
    assert found.contradicted == ()
    assert found.bits["normalizer"] == 8
    assert found.bits["score"] == 8


@pytest.mark.parametrize("dtype", slow_unless(lambda x: x == "float32", DTYPES))
def test_to_declare_less_than_is_there_is_no_contradiction(dtype):
    assert take(CORRECT["chunk_16"], dtype, **ALL_NARROW).contradicted == ()


def test_what_every_sum_loses_is_blamed_on_the_accumulator():
    (sentence,) = take(all_in_bfloat16).contradicted
    assert sentence.startswith("`accumulator_dtype` is float32 (24 bits)")
    assert "declare accumulator_dtype=bfloat16" in sentence
    assert not take(all_in_bfloat16, accumulator_dtype="bfloat16").contradicted


def test_a_wider_accumulator_shows_if_it_is_declared():
    def in_float64(query, key, value):
        given = (x.astype(np.float64) for x in (query, key, value))
        return CORRECT["quadratic"](*given).astype(query.dtype)

    found = take(in_float64, accumulator_dtype="float64")
    assert found.bits["state"] == 48
    assert found.bits["value"] == 24
    assert {"state", "value"} <= {*found.capped}


@pytest.mark.parametrize("dtype", slow_unless(lambda x: x == "float32", DTYPES))
@pytest.mark.parametrize(
    ("name", "eps", "mode"),
    [
        ("eps_1e-6", 1e-6, "denominator"),
        ("eps_1e-10", 1e-10, "denominator"),
        ("denominator_clamped", 1e-3, "clamp"),
    ],
)
def test_an_epsilon_is_measured(name, eps, mode, dtype):
    found = take(FAULTY[name], dtype)
    assert found.eps == pytest.approx(eps, rel=5e-3)
    assert found.eps_mode == mode
    assert len(found.contradicted) == 1
    assert "`eps` is declared 0" in found.contradicted[0]
    assert not take(FAULTY[name], dtype, eps=eps, eps_mode=mode).contradicted
    assert "`eps`" in take(FAULTY[name], dtype, eps=2 * eps).contradicted[0]


@pytest.mark.parametrize("dtype", slow_unless(lambda x: x == "float32", DTYPES))
@pytest.mark.parametrize("scale", ["1", "0.125"])
def test_an_epsilon_in_the_normalizer_is_told_from_one_in_the_denominator(scale, dtype):
    def kernel(query, key, value):
        return identity(query, key, value, in_normalizer=1e-6, scale=float(scale))

    declared = {"feature_map": "identity", "scale": scale}
    found = take(kernel, dtype, **declared)
    assert found.eps == pytest.approx(1e-6, rel=5e-3)
    assert found.eps_mode == "normalizer"
    agreed = take(kernel, dtype, eps=1e-6, eps_mode="normalizer", **declared)
    assert not agreed.contradicted


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_resolution_is_the_smallest_epsilon_that_shows(dtype):
    resolution = take(identity, dtype, feature_map="identity").eps_resolution
    assert resolution < 2.0**-60

    def with_eps(eps):
        return take(
            lambda query, key, value: identity(query, key, value, eps=eps),
            dtype,
            feature_map="identity",
        )

    assert with_eps(1.01 * resolution).eps is not None
    assert with_eps(resolution / 4).eps is None


def test_features_that_are_declared_precise_show_a_smaller_epsilon():
    usual = take(CORRECT["chunk_16"])
    precise = take(CORRECT["chunk_16"], feature_error="relative")
    assert precise.eps_resolution < 2.0**-30 * usual.eps_resolution
    kernel = FAULTY["eps_1e-10"]
    assert take(kernel, feature_error="relative").eps == pytest.approx(1e-10, rel=5e-3)


def test_what_features_of_few_bits_hide_is_not_denied():
    def in_bfloat16(query, key, value):
        x = [y.astype(np.float32) for y in all_bits(query, key, value)]
        return FAULTY["eps_1e-6"](*x).astype(query.dtype)

    def all_bits(*inputs):
        bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
        one = bfloat16(1)
        for y in inputs:
            yield y.astype(bfloat16) * one

    found = take(in_bfloat16)
    assert found.bits["key"] == 8
    assert found.eps is None
    assert found.eps_resolution > 1e-6


def test_a_declared_epsilon_that_is_not_there_is_a_contradiction():
    (sentence,) = take(CORRECT["chunk_16"], eps=1e-6).contradicted
    assert sentence.endswith("omit it")


@pytest.mark.parametrize("dtype", slow_unless(lambda x: x == "float32", DTYPES))
def test_what_does_not_divide_has_no_epsilon(dtype):
    found = take(FAULTY["not_normalised"], dtype)
    assert (found.eps, found.eps_resolution) == (None, np.inf)
    assert found.contradicted == ()


def test_a_coarse_quotient_has_no_epsilon():
    found = take(FAULTY["coarse_reciprocal"])
    assert found.eps is None
    assert "no declaration allows that" in found.contradicted[0]


@pytest.mark.parametrize(
    ("chunk", "dtype"),
    in_turn(in_float32, product([2, 7, 64, 256], DTYPES)),
)
def test_a_chunk_size_is_measured(chunk, dtype):
    assert take(assemble(Parts(chunk=chunk)), dtype).chunk_size == chunk


def test_a_chunk_size_that_is_not_the_declared_one_is_a_contradiction():
    assert not take(CORRECT["chunk_16"], chunk_size=16).contradicted
    (sentence,) = take(CORRECT["chunk_16"], chunk_size=64).contradicted
    assert sentence.endswith("declare chunk_size=16")
    assert not take(CORRECT["quadratic"], chunk_size=64).contradicted


@pytest.mark.parametrize("dtype", slow_unless(lambda x: x == "float32", DTYPES))
def test_without_a_normalizer_there_is_no_epsilon(dtype):
    declared = {"feature_map": "identity", "normalize": "false", "scale": "K^-0.5"}
    found = take(not_normalised, dtype, **declared)
    assert found.bits.keys() == set(STAGES) - {"normalizer"}
    # Outputs of few bits show some more, since most is taken back.
    shown = SIGNIFICAND_BITS[dtype] + 6
    assert found.bits["state"] >= min(shown, accumulator(dtype))
    assert (found.eps, found.eps_resolution) == (None, np.inf)
    assert found.chunk_size == 64
    assert not found.contradicted
    narrow = take(
        lambda query, key, value: not_normalised(
            query, key, value, carried=rounded_to("bfloat16")
        ),
        dtype,
        **declared,
    )
    assert narrow.bits["state"] == 8
    assert len(narrow.contradicted) == 1


@pytest.mark.parametrize("dtype", slow_unless(lambda x: x == "float32", DTYPES))
def test_the_state_of_a_kernel_that_is_not_causal(dtype):
    op = "linear_attention_noncausal"
    assert not take(not_causal, dtype, op).contradicted

    def narrow(query, key, value):
        return not_causal(query, key, value, carried=rounded_to("bfloat16"))

    found = take(narrow, dtype, op)
    assert found.bits["state"] == 8
    assert [s.split("`")[1] for s in found.contradicted] == ["state_dtype"]


@pytest.mark.parametrize(
    "declared",
    [
        {"key_dims": "32", "value_dims": "8,32"},
        {"equal_dims": "true"},
        {"length_multiple_of": "96"},
        {"max_length": "100"},
        {"min_length": "1000"},
        {"layout": "td"},
        {"layout": "bthd"},
    ],
)
def test_the_limits_of_the_contract_are_kept(declared):
    contract = Contract.from_mapping(declared)
    layout = contract.layout

    def picky(query, key, value):
        assert query.ndim == len(layout)
        length = query.shape[layout.index("t")]
        assert length % contract.length_multiple_of == 0
        assert contract.shortest <= length <= (contract.max_length or length)
        assert query.shape[-1] in (contract.key_dims or (query.shape[-1],))
        assert value.shape[-1] in (contract.value_dims or (value.shape[-1],))
        assert query.shape[-1] == value.shape[-1] or not contract.equal_dims
        if layout != "bthd":
            return CORRECT["chunk_16"](query, key, value)
        given = (np.swapaxes(x, 1, 2) for x in (query, key, value))
        return np.swapaxes(CORRECT["chunk_16"](*given), 1, 2)

    found = take(picky, **declared)
    assert found.bits == dict.fromkeys(STAGES, 24)
    assert found.chunk_size == 16


FEATURE_MAPS = {
    "elu_plus_one": Parts().features,
    "relu": lambda x: np.maximum(x, 0),
    "exp": np.exp,
}


@pytest.mark.parametrize(
    ("length", "feature_map", "dtype"),
    in_turn(in_float32, product([0, 1, 8, 20, 50], FEATURE_MAPS, DTYPES)),
)
def test_short_sequences_show_less_and_nothing_wrong(length, dtype, feature_map):
    kernel = assemble(Parts(features=FEATURE_MAPS[feature_map]))
    found = take(kernel, dtype, feature_map=feature_map, max_length=length)
    assert bool(found.bits) == (length >= 1)
    assert not found.contradicted
    whole = {stage for stage in found.bits if stage not in found.capped}
    assert {found.bits[stage] for stage in whole} <= {accumulator(dtype)}


def test_shapes_that_the_target_does_not_take_are_found_out():
    def tiled(query, key, value):
        assert query.shape[-1] % 16 == value.shape[-1] % 16 == 0
        assert query.shape[-2] % 128 == 0
        return CORRECT["chunk_16"](query, key, value)

    found = take(tiled)
    assert found.bits == dict.fromkeys(STAGES, 24)
    assert found.chunk_size == 16


def raises(query, key, value):
    msg = "not today"
    raise ValueError(msg)


def raises_on_large_values(query, key, value):
    assert abs(value).max() < 100
    return CORRECT["chunk_16"](query, key, value)


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [(raises, "not today"), (FAULTY["returns_zeros"], "wrong by more than rounding")],
)
def test_a_target_that_gives_no_answer_has_an_empty_sheet(kernel, reason):
    found = take(kernel)
    assert (found.bits, found.eps, found.chunk_size) == ({}, None, None)
    assert found.contradicted == ()
    assert reason in found.reason
    assert "nothing could be measured" in printed(found)


def test_a_target_that_raises_on_some_questions_is_asked_the_others():
    found = take(raises_on_large_values)
    assert found.bits["key"] == 24
    assert found.chunk_size is None


def test_the_death_of_a_target_is_passed_on():
    def dies(call):
        msg = "crashed"
        raise TargetDied(msg, hung=False)

    target = InProcess(TargetConfig("test:kernel"), CORRECT["chunk_16"])
    target.call = dies
    scope = Scope(OPERATORS["linear_attention"], Contract(), "float32")
    with pytest.raises(TargetDied):
        fingerprint(target, scope)


def test_it_is_deterministic():
    assert take(FAULTY["eps_1e-6"], "bfloat16") == take(FAULTY["eps_1e-6"], "bfloat16")


def printed(found):
    console = Console(width=400)
    with console.capture() as capture:
        console.print(sheet(found))
    return capture.get()


def test_the_sheet_and_the_json_hold_what_was_measured():
    found = take(FAULTY["bfloat16_state"], chunk_size=64)
    text = printed(found)
    for words in ("state", "bfloat16", "none above", "chunk size  16", *STAGES):
        assert words in text
    assert all(sentence in text for sentence in found.contradicted)
    values = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert values["bits"]["state"] == 8
    assert values["chunk_size"] == 16
    assert len(values["contradicted"]) >= 2
    assert Fingerprint("float32", {}).to_dict()["eps_resolution"] == "inf"
    epsilon = printed(take(FAULTY["denominator_clamped"], "bfloat16"))
    assert "0.001 (clamp)" in epsilon
    assert "all that such inputs and outputs can show" in epsilon


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_kernels_in_torch(dtype, torch):
    def features(x):
        return torch.where(x > 0, x + 1, torch.exp(torch.clamp(x, max=0)))

    def quadratic(query, key, value):
        scores = torch.tril(features(query) @ features(key).mT)
        return scores @ value / scores.sum(-1, keepdim=True)

    def chunked(query, key, value):
        q, k = features(query), features(key)
        memory = torch.zeros(*k.shape[:-2], k.shape[-1], value.shape[-1], dtype=k.dtype)
        z = torch.zeros(*k.shape[:-2], k.shape[-1], 1, dtype=k.dtype)
        outputs = []
        for qc, kc, vc in zip(
            *(x.split(32, dim=-2) for x in (q, k, value)), strict=True
        ):
            scores = torch.tril(qc @ kc.mT)
            total = qc @ z + scores.sum(-1, keepdim=True)
            outputs.append((qc @ memory + scores @ vc) / total)
            memory = memory + kc.mT @ vc
            z = z + kc.sum(-2)[..., None]
        return torch.cat(outputs, dim=-2)

    for kernel, chunk in ((quadratic, None), (chunked, 32)):
        found = take(kernel, dtype, framework="torch")
        assert found.bits == dict.fromkeys(STAGES, accumulator(dtype))
        # A product of matrices takes keys in blocks of its own, larger than any chunk
        # here: on some processors (192 keys in float32 on an AMD EPYC) they are seen.
        blocks = found.chunk_size is not None and found.chunk_size > 128
        assert found.chunk_size == chunk or (chunk is None and blocks)
        assert not found.contradicted


def take_gated(kernel, dtype):
    contract = Contract(**kernel.contract)
    environment = TargetConfig("test:kernel", op=kernel.op, scale=contract.scale)
    target = InProcess(environment, kernel.kernel)
    return fingerprint(target, Scope(OPERATORS[kernel.op], contract, dtype))


# Chunk sizes of correct kernels; keys that erase what they wrote hide them.
GATED = {
    "simple_gla by chunks": 16,
    "rwkv6 by tokens": None,
    "rwkv7 by chunks": 16,
    "kda by chunks of 10": None,
    "gsa": None,
    "lightning by chunks": 48,
    "mesa by solving": None,
    "based by chunks of 7": 7,
}


@pytest.mark.parametrize("name", GATED)
def test_every_operator_with_gates_or_features_of_its_own_is_measured(name):
    found = take_gated(correct.CORRECT[name], "float32")
    assert {"value", "key", "state"} <= found.bits.keys()
    assert {n for s, n in found.bits.items() if s not in found.capped} == {24}
    assert (found.eps, found.eps_resolution) == (None, np.inf)
    assert found.chunk_size == GATED[name]
    assert not found.contradicted


def by_tokens(query, key, value, log_decay=None, beta=None):
    """Return the gated delta rule, or without beta simple_gla, in a bfloat16 state."""
    carried = rounded_to("bfloat16")
    q, k, v = wide(query, key, value)
    q = q * np.asarray(q.shape[-1] ** -0.5, q.dtype)
    state = np.zeros((*k.shape[:-2], k.shape[-1], v.shape[-1]), q.dtype)
    output = np.zeros_like(v)
    for t in range(q.shape[-2]):
        if log_decay is not None:
            state = np.exp(log_decay[..., t, None, None]) * state
        row = v[..., t, None, :]
        if beta is not None:
            row = beta[..., t, None, None] * (row - k[..., t, None, :] @ state)
        state = carried(state + k[..., t, :, None] * row)
        output[..., t, :] = (q[..., t, None, :] @ state)[..., 0, :]
    return output.astype(query.dtype)


def a_simple_gla(query, key, value, log_decay):
    return by_tokens(query, key, value, log_decay)


def a_delta_rule(query, key, value, beta):
    return by_tokens(query, key, value, beta=beta)


def take_operator(kernel, op, dtype="float32", **declared):
    target = InProcess(TargetConfig("test:kernel", op=op), kernel)
    return fingerprint(target, Scope(OPERATORS[op], Contract(**declared), dtype))


@pytest.mark.parametrize(
    ("kernel", "op"), [(a_simple_gla, "simple_gla"), (a_delta_rule, "delta_rule")]
)
def test_a_narrow_state_of_an_operator_with_gates_is_measured(kernel, op):
    found = take_operator(kernel, op)
    assert found.bits["state"] == 8
    assert found.contradicted
    declared = {"state_dtype": "bfloat16"}
    assert not take_operator(kernel, op, **declared).contradicted


@pytest.mark.parametrize("op", OPERATORS)
def test_every_operator_is_asked_in_its_shapes(op):
    operator = OPERATORS[op]
    target = InProcess(TargetConfig("test:kernel", op=op), lambda *_: None)
    asked = []

    def answer(call):
        asked.append({name: x.shape for name, x in call.inputs.items()})
        raise TargetRaised

    target.call = answer
    measured = fingerprint(target, Scope(operator, Contract(), "float32"))
    assert measured.bits == {}
    assert measured.distances == {}
    assert "the target raised" in printed(measured)
    for shapes in asked:
        sizes = operator.sizes(
            {name: np.empty(shape) for name, shape in shapes.items()}
        )
        axes = {one.name: one.axes for one in operator.inputs}
        assert shapes == {n: tuple(sizes[a] for a in axes[n]) for n in operator.names}


def test_outputs_that_could_have_equal_bits_are_compared():
    environment = TargetConfig("test:kernel", op="kda")
    target = InProcess(environment, packed(recurrence("kda"), "kda"))
    scope = Scope(OPERATORS["kda"], Contract(), "float32", target.interface)
    measured = fingerprint(target, scope)
    distances = measured.distances
    assert set(distances) == {BATCH, SPLIT, DECODED, PACKED}
    # Cut at a multiple of its chunk; decoding adds in another order.
    assert distances[BATCH] == distances[SPLIT] == distances[PACKED] == 0
    assert 0 < distances[DECODED] < 100
    assert " ulp" in printed(measured)
    assert f"{BATCH}: bitwise" in printed(measured)


def test_what_a_target_does_not_take_is_not_compared():
    assert set(take(CORRECT["chunk_16"]).distances) == {BATCH}
    assert take(CORRECT["chunk_16"], layout="htd").distances == {}
    assert take(FAULTY["tile_by_batch"]).distances[BATCH] > 0


def test_units_are_those_of_the_largest_number_of_a_row():
    x = np.asarray([[[[1.0, 1e-9]]]])
    moved = x + np.asarray([0, 2.0**-23])
    assert ulps(x, moved, "float32") == 1
    assert ulps(x, moved, "bfloat16") == 2.0**-16
    assert ulps(x, x * np.nan, "float32") == np.inf
    assert ulps(x[:, :, :0], x, "float32") == 0
