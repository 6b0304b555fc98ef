"""Faults on no list are placed and measured; of right kernels nothing is said."""

import math
import re
from dataclasses import replace
from fractions import Fraction
from functools import partial, wraps
from importlib import import_module
from itertools import pairwise, product
from types import SimpleNamespace

import numpy as np
import pytest

import linkern
from linkern.testing import OPERATORS, Contract
from linkern.testing.diagnosis.diagnose import diagnose, examine
from linkern.testing.errors import OutOfTime
from linkern.testing.kernels.assembly import (
    RecurrenceBackward,
    decays_between,
    elu_plus_one,
    recurrence,
)
from linkern.testing.kernels.mutants import MUTANTS
from linkern.testing.problems.context import Scope
from linkern.testing.target.process import InProcess
from linkern.testing.target.protocol import Call, TargetConfig
from tests.marks import every
from tests.testing.diagnosis.unlisted import (
    at_least,
    dense,
    gla,
    lost,
    part,
    plus,
    window,
)
from tests.testing.diagnosis.unseen.kernels import UNSEEN

# The package has a function of the same name.
MODULE = import_module("linkern.testing.diagnosis.diagnose")
pytestmark = pytest.mark.usefixtures("no_clock")


def diagnosed(kernel, op="linear_attention", *, look=diagnose, **declared):
    contract = Contract(**declared)
    config = TargetConfig("test", layout=contract.layout, op=op)
    target = InProcess(config, kernel)
    scope = Scope(OPERATORS[op], contract, "float32", interface=target.interface)
    return look(target, scope)


def edges_of(chunk, place, **parts):
    return part(chunk=chunk, written=lost(place), **parts)


def late(output):
    return np.concatenate([output[..., :1, :], output[..., :-1, :]], -2)


def divided_by(axis):
    """Return a kernel that takes a mean over an axis of the call."""

    def kernel(query, key, value):
        return linkern.linear_attention(query, key, value).output / query.shape[axis]

    return kernel


@pytest.mark.parametrize(("axis", "letter"), [(0, "B"), (1, "H")])
def test_a_mean_over_the_batch_or_the_heads_is_no_constant(axis, letter):
    cause = diagnosed(divided_by(axis))
    assert cause.sentence == f"the output lacks the factor `{letter}` everywhere"


@pytest.mark.parametrize(("axis", "letter"), [(0, "B"), (1, "H")])
@pytest.mark.parametrize("name", ["query", "log_decay", "bonus"])
def test_a_gradient_that_is_a_mean_of_the_batch_or_the_heads(name, axis, letter):
    def kernel(query, key, value, log_decay, bonus):
        return linkern.rwkv6(query, key, value, log_decay, bonus).output

    def vjp(query, key, value, log_decay, bonus, output_cotangent):
        inputs = (query, key, value, log_decay, bonus)
        gradients = dict(linkern.vjp(linkern.rwkv6, *inputs)[1](output_cotangent))
        gradients[name] = gradients[name] / query.shape[axis]
        return gradients

    kernel.vjp = vjp
    cause = diagnosed(kernel, "rwkv6")
    said = f"the gradient of {name} lacks the factor `{letter}` everywhere"
    assert cause.sentence == said


def test_a_gradient_that_is_wrong_at_the_end_of_a_range_is_placed_there():
    def kernel(query, key, value, log_decay):
        return linkern.gla(query, key, value, log_decay).output

    def vjp(query, key, value, log_decay, output_cotangent):
        inputs = (query, key, value, log_decay)
        gradients = dict(linkern.vjp(linkern.gla, *inputs)[1](output_cotangent))
        gradients["log_decay"] = (
            np.where(log_decay == 0, 0.5, 1) * gradients["log_decay"]
        )
        return gradients

    kernel.vjp = vjp
    cause = diagnosed(kernel, "gla")
    assert (cause.where, cause.by_what) == ("where log_decay[source] is 0", "1/2")
    assert not any(words.endswith("above 0") for words in cause.alternatives)


@pytest.mark.parametrize(
    ("is_lost", "said"),
    [
        (
            lambda length: length % 32,
            "the gradient of value is not finite where the length is no multiple of 32",
        ),
        (
            lambda length: length > 64,
            "the gradient of value is wrong everywhere; not finite",
        ),
    ],
)
def test_gradients_that_are_not_finite_are_so_for_some_lengths(is_lost, said):
    def kernel(query, key, value, log_decay):
        return linkern.simple_gla(query, key, value, log_decay).output

    def vjp(query, key, value, log_decay, output_cotangent):
        inputs = (query, key, value, log_decay)
        gradients = dict(linkern.vjp(linkern.simple_gla, *inputs)[1](output_cotangent))
        if is_lost(query.shape[2]):
            gradients["value"] = np.full_like(gradients["value"], np.nan)
        return gradients

    kernel.vjp = vjp
    assert diagnosed(kernel, "simple_gla").sentence.split("; the exact")[0] == said


def test_a_feature_in_place_of_its_slope_is_named():
    """The slope of elu below 0 is exp(x): taken for elu(x), it lacks a 1."""

    def kernel(query, key, value):
        return linkern.linear_attention(query, key, value).output

    def vjp(query, key, value, output_cotangent):
        inputs = (query, key, value)
        _, pull = linkern.vjp(linkern.linear_attention, *inputs)
        gradients = dict(pull(output_cotangent))
        for name, x in (("query", query), ("key", key)):
            below = np.minimum(x, 0)
            wrong = np.where(x < 0, np.expm1(below) / np.exp(below), 1)
            gradients[name] = gradients[name] * wrong.astype(x.dtype)
        return gradients

    kernel.vjp = vjp
    cause = diagnosed(kernel)
    assert cause.by_what == "(feature of the query - 1) / slope of the feature map"
    assert cause.where == "where query[row] is below 0"


def gradient_of_a_shared_key_with_a_decay():
    """Simple GLA in which each head of values has its decay in the gradient of keys."""

    def repeated(query, key, value):
        times = value.shape[1] // query.shape[1]
        return [np.repeat(x, times, axis=1) for x in (query, key)]

    def kernel(query, key, value, log_decay):
        shared = repeated(query, key, value)
        return linkern.simple_gla(*shared, value, log_decay).output

    def vjp(query, key, value, log_decay, output_cotangent):
        inputs = *repeated(query, key, value), value, log_decay
        gradients = dict(linkern.vjp(linkern.simple_gla, *inputs)[1](output_cotangent))
        gradients["key"] *= np.exp(log_decay)[..., None]
        for name in ("query", "key"):
            lead, rest = query.shape[:2], query.shape[2:]
            gradients[name] = gradients[name].reshape(*lead, -1, *rest).sum(axis=2)
        return gradients

    kernel.vjp = vjp
    return kernel


@pytest.mark.parametrize(("groups", "named"), [(1, True), (2, False)])
def test_maps_have_no_shared_queries_if_a_law_fails_without(groups, named):
    shapes = (1, 1, 3, 2), (1, 1, 3, 2), (1, groups, 3, 2), (1, groups, 3)
    names = ("query", "key", "value", "log_decay")
    rows = [np.ones(shape, np.float32) for shape in shapes]
    call = Call(dict(zip(names, rows, strict=True)), cotangent=rows[2])
    look = partial(examine, shown_by=[[call]])
    kernel = gradient_of_a_shared_key_with_a_decay()
    cause = diagnosed(kernel, "simple_gla", look=look, value_groups=True)
    said = "the gradient of key is multiplied by `exp(log_decay[source])` everywhere"
    assert (cause.sentence == said) is named


def test_a_sum_of_the_backward_pass_runs_in_the_other_direction():
    def kernel(query, key, value):
        return linkern.linear_attention(query, key, value).output

    def vjp(query, key, value, output_cotangent):
        inputs = (query, key, value)
        (output, _), pullback = linkern.vjp(linkern.linear_attention, *inputs)
        gradients = dict(pullback(output_cotangent))
        rows, features = elu_plus_one(query), elu_plus_one(key)
        denominator = (rows * features.cumsum(-2)).sum(-1, keepdims=True)
        inner = (output_cotangent * output).sum(-1, keepdims=True)
        added = -inner / denominator * rows
        wrong, right = added.cumsum(-2), added[..., ::-1, :].cumsum(-2)[..., ::-1, :]
        slope = np.minimum(features, 1)
        gradients["key"] = gradients["key"] + (wrong - right) * slope
        return gradients

    kernel.vjp = vjp
    cause = diagnosed(kernel)
    assert cause.sentence == (
        "the gradient of key through the denominator is a sum over rows before the "
        "source in place of rows after it everywhere"
    )


def test_a_gradient_that_is_wrong_through_the_denominator_too_is_wrong_as_a_whole():
    def kernel(query, key, value):
        return linkern.linear_attention(query, key, value).output

    def vjp(query, key, value, output_cotangent):
        inputs = (query, key, value)
        gradients = dict(
            linkern.vjp(linkern.linear_attention, *inputs)[1](output_cotangent)
        )
        gradients["key"] = np.where(key > 0, key + 1, 1) * gradients["key"]
        return gradients

    kernel.vjp = vjp
    cause = diagnosed(kernel)
    assert (cause.stage, cause.by_what) == ("gradient of key", "feature of the key")
    assert cause.where.startswith("where key[source] is above 0")


@pytest.mark.parametrize(("which", "place"), [("first", 0), ("last", 15)])
def test_a_normaliser_that_lacks_a_token_of_each_chunk(which, place):
    def kernel(query, key, value):
        rows, features = elu_plus_one(query), elu_plus_one(key)
        weights = np.tril(rows @ features.mT)
        row, source = np.ogrid[: query.shape[2], : query.shape[2]]
        lost = (source % 16 == place) & (source // 16 < row // 16)
        kept = np.where(lost, 0, weights).sum(-1, keepdims=True)
        return weights @ value / kept

    cause = diagnosed(kernel)
    kept = f"(denominator - numerators of the {which} tokens of earlier chunks)"
    assert cause.sentence == (
        f"the output is multiplied by `denominator / {kept}` in rows from 16 on; seen "
        "first at T=17"
    )
    assert (
        cause.hint
        == "the normaliser that is carried: a range of tokens that is off by one"
    )


def test_a_normaliser_that_is_not_decayed_from_chunk_to_chunk():
    def kernel(query, key, value, input_gate, log_decay):
        output = np.zeros(value.shape)
        memory = np.zeros((*key.shape[:2], key.shape[-1], value.shape[-1]))
        before, inside = np.zeros((2, *memory.shape[:-1], 1))
        decays, gates = (np.exp(x, dtype=float) for x in (log_decay, input_gate))
        for t in range(query.shape[-2]):
            if t % 16 == 0:
                before, inside, since = before + inside, 0 * inside, 1.0
            decay, gate = decays[..., t, None, None], gates[..., t, None, None]
            row, written = query[..., t, None, :], key[..., t, :, None]
            since = since * decay
            inside = decay * inside + gate * written
            memory = decay * memory + gate * written @ value[..., t, None, :]
            divisor = abs(row @ (since * before + inside)) / key.shape[-1] ** 0.5
            rows = row @ memory / key.shape[-1] ** 0.5 / np.maximum(divisor, 1)
            output[..., t, :] = rows[..., 0, :]
        return output.astype(query.dtype)

    cause = diagnosed(kernel, "mlstm")
    assert cause.stage == "factor of rows of the output"
    assert cause.where == "rows from 32 on"
    assert cause.hint.startswith("the normaliser that is carried")


@pytest.mark.parametrize(
    ("shift", "said"),
    [
        (1, "from the sequence before, in the first row of the sequence alone"),
        (-1, "from the sequence before, of its last token alone"),
    ],
)
def test_a_boundary_of_packed_sequences_is_a_token_away(shift, said):
    def kernel(query, key, value, cu_seqlens=None):
        if cu_seqlens is not None:
            cu_seqlens = np.array(cu_seqlens)
            moved = cu_seqlens[1:-1] + shift
            cu_seqlens[1:-1] = np.clip(moved, 0, cu_seqlens[-1])
        return linkern.linear_attention(query, key, value, cu_seqlens=cu_seqlens).output

    cause = diagnosed(kernel)
    assert cause.stage == "output across sequences"
    assert said in cause.sentence


@pytest.mark.parametrize(
    ("words", "other_head"),
    [
        ("h // (HV / H)", lambda heads, keys: heads // (len(heads) // keys)),
        ("h % H", lambda heads, keys: heads % keys),
    ],
)
def test_the_gate_of_another_head_of_a_group(words, other_head):
    def kernel(query, key, value, log_decay):
        heads = other_head(np.arange(value.shape[1]), query.shape[1])
        decays = log_decay[:, heads]
        return linkern.simple_gla(query, key, value, decays).output

    cause = diagnosed(kernel, "simple_gla", value_groups=True)
    assert cause.by_what == f"log_decay of head {words} in place of log_decay"


@pytest.mark.parametrize("names", [("query", "key"), ("key",), ("query",)])
def test_what_heads_of_values_share_is_taken_in_turns(names):
    def kernel(query, key, value, log_decay, beta):
        each = value.shape[1] // query.shape[1]
        shared = {"query": query, "key": key}
        query, key = (
            np.tile(x, (1, each, 1, 1)) if name in names else np.repeat(x, each, 1)
            for name, x in shared.items()
        )
        return linkern.gated_delta_rule(query, key, value, log_decay, beta).output

    cause = diagnosed(kernel, "gated_delta_rule", value_groups=True)
    words = " and ".join(names)
    assert cause.by_what == f"{words} of head h % H in place of h // (HV / H)"


def exchanged(output):
    output[:, :2] = output[:, 1::-1].copy()
    return output


@pytest.mark.parametrize(
    ("over", "first"), [("the chunk up to the row", 16), ("the chunks between", 32)]
)
def test_a_normaliser_whose_carried_part_decays_too_little_is_named(over, first):
    def kernel(query, key, value, log_decay):
        inputs = query, key, value, log_decay
        query, key, value, log_decay = (x.astype(float) for x in inputs)
        row, source = np.ogrid[: query.shape[2], : query.shape[2]]
        sums = np.cumsum(log_decay, axis=-1)
        logs = np.where(row < source, 0, sums[..., None] - sums[..., None, :])
        weights = np.tril((query @ key.mT) ** 2 * np.exp(logs))
        begin, end = row // 16 * 16, (source // 16 + 1) * 16
        start, stop = {16: (begin, row + 1), 32: (end, begin)}[first]
        padded = np.pad(sums, ((0, 0), (0, 0), (1, 16)))
        lacking = padded[..., stop + 0 * source] - padded[..., start + 0 * row]
        more = np.where(end <= begin, np.exp(-lacking), 1)
        return (weights @ value / (weights * more).sum(-1, keepdims=True)).astype(
            np.float32
        )

    cause = diagnosed(kernel, "power_retention")
    lacks = f"(sum of weights, those of earlier chunks not decayed over {over})"
    assert cause.by_what == f"1 / {lacks}"
    assert cause.where == f"rows from {first} on"


def test_features_that_lack_a_factor_in_the_carried_normaliser_are_named():
    def kernel(query, key, value):
        scores = query @ key.mT / np.float32(query.shape[-1] ** 0.5)
        row, source = np.ogrid[: query.shape[2], : query.shape[2]]
        second = np.where(row // 16 > source // 16, scores**2, scores**2 / 2)
        weights, kept = (np.tril(1 + scores + x) for x in (scores**2 / 2, second))
        return weights @ value / kept.sum(-1, keepdims=True)

    cause = diagnosed(kernel, "based")
    lacks = "(sum of weights, those of earlier chunks with x^2 in place of x^2 / 2)"
    assert (cause.where, cause.by_what) == ("rows from 16 on", f"1 / {lacks}")


def test_tiles_of_channels_that_decay_as_the_first_one_are_named():
    def kernel(query, key, value, log_decay):
        before = since = np.zeros((*key.shape[:2], key.shape[-1], value.shape[-1]))
        output, tile = np.zeros_like(value), np.arange(key.shape[-1]) % 16
        for t in range(query.shape[2]):
            if t % 16 == 0:
                decays = log_decay[:, :, max(t - 16, 0) : t].sum(2)[..., tile, None]
                before, since = np.exp(decays) * before + since, 0 * since
                sums = 0 * decays
            decays = log_decay[:, :, t, :, None]
            sums = sums + decays
            since = np.exp(decays) * since
            since = since + key[:, :, t, :, None] * value[:, :, t, None]
            state = np.exp(sums) * before + since
            output[:, :, t] = (query[:, :, t, None] @ state)[..., 0, :]
        return output / np.float32(key.shape[-1] ** 0.5)

    cause = diagnosed(kernel, "gla")
    over = "sum of log_decay over the chunks between"
    assert cause.by_what == f"exp({over} of channel k % 16 - {over})"
    assert "key channels from 16 on" in cause.where


def test_a_normaliser_that_is_overwritten_holds_two_chunks():
    def kept(scores):
        row, source = np.ogrid[: scores.shape[-2], : scores.shape[-1]]
        return np.tril(np.where(row // 16 - source // 16 < 2, scores, 0))

    cause = diagnosed(dense(of_divisor=kept))
    held = "sum of numerators over the last two chunks up to the row"
    assert (cause.where, cause.by_what) == ("rows from 32 on", f"denominator / {held}")


def test_an_initial_state_that_decays_too_little_in_the_final_one_is_placed():
    def kernel(query, key, value, log_decay, initial_state=None):
        rows, state = recurrence("simple_gla")(
            query, key, value, log_decay, initial_state=initial_state
        )
        if initial_state is None:
            return rows, state
        part = np.exp(log_decay.sum(axis=-1))[..., None, None] * initial_state
        more = np.exp(-log_decay[..., :1])[..., None] if value.shape[2] else 1
        return rows, state + (more - 1) * part

    cause = diagnosed(kernel, "simple_gla")
    assert cause.stage == "output"
    assert cause.where == "what a final state has of the initial state"


@pytest.mark.parametrize(
    ("chunk", "place"), every(6, product((16, 24, 40), ("last", "first")))
)
def test_the_size_of_chunks_is_measured(chunk, place):
    diagnosis = diagnosed(edges_of(chunk, {"first": 0, "last": -1}[place]))
    assert diagnosis.stage == "output"
    assert f"the {place} source of every chunk of {chunk}" in diagnosis.where
    assert diagnosis.by_what == "0"
    # Beside it stands what leaves out the source's own row: behind it, or across edges.
    source = {
        "of": "source",
        "statement": f"the {place} of every chunk",
        "chunk": chunk,
    }
    assert source in [dict(x) for x in diagnosis.places[0]]
    assert diagnosis.factor["constant"] == 0


@pytest.mark.parametrize("width", every(2, (33, 50)))
def test_the_width_of_a_window_is_measured(width):
    diagnosis = diagnosed(dense(weights=window(width)))
    assert (diagnosis.where, diagnosis.by_what) == (
        f"sources {width} back or more",
        "0",
    )
    assert diagnosis.name == "output_lost"


@pytest.mark.parametrize("number", [3, -1, 0.25])
def test_a_constant_factor_is_measured(number):
    kernel = dense(divide=lambda n, d: n * n.dtype.type(number))
    diagnosis = diagnosed(kernel, normalize=False)
    assert (diagnosis.where, diagnosis.by_what) == ("everywhere", str(Fraction(number)))
    assert diagnosis.declaration == (f"scale={number:g}",)
    factor = {"kind": "product", "constant": number, "exponents": {}}
    assert (diagnosis.places, diagnosis.factor) == (((),), factor)


def test_what_the_normaliser_lacks_is_measured():
    diagnosis = diagnosed(dense(divide=lambda n, d: n))
    assert (diagnosis.where, diagnosis.by_what) == ("everywhere", "denominator")
    assert diagnosis.declaration == ("normalize=false",)


@pytest.mark.parametrize(
    ("divide", "divisor", "where", "declaration"),
    every(
        2,
        [
            (plus(1e-6), "(denominator + 1e-6)", "everywhere", ("eps=1e-6",)),
            (plus(1e-3), "(denominator + 0.001)", "everywhere", ("eps=0.001",)),
            (
                at_least(1e-3),
                "max(denominator, 0.001)",
                "where denominator is below 0.001",
                ("eps=0.001", "eps_mode=clamp"),
            ),
        ],
    ),
)
def test_an_epsilon_that_can_be_declared_is_the_factor(
    divide, divisor, where, declaration
):
    diagnosis = diagnosed(dense(divide=divide))
    assert diagnosis.declaration == declaration
    assert diagnosis.by_what == f"denominator / {divisor}"
    assert (diagnosis.stage, diagnosis.where) == ("output", where)
    assert diagnosis.alternatives == ()


def second_order(x):
    """Features of `based`: 1, x and all products of two channels."""
    pairs = (x[..., :, None] * x[..., None, :]).reshape(*x.shape[:-1], -1)
    half = x.dtype.type(0.5**0.5)
    return np.concatenate([np.ones_like(x[..., :1]), x, half * pairs], -1)


def based(divide):
    def kernel(query, key, value, *, scale=None):
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        q = second_order(query * query.dtype.type(scale))
        weights = np.tril(q @ np.swapaxes(second_order(key), -1, -2))
        return divide(weights @ value, weights.sum(-1, keepdims=True))

    return kernel


def test_an_epsilon_is_in_all_rows_though_rounding_hides_it_in_most():
    diagnosis = diagnosed(based(plus(1e-4)), "based")
    assert diagnosis.by_what == "denominator / (denominator + 0.0001)"
    assert diagnosis.where == "everywhere"
    assert diagnosed(based(np.divide), "based", min_length=1) is None


def padded_with_the_last_key(query, key, value):
    """Linear attention of all tokens, keys padded to 16 with copies of the last."""
    index = np.minimum(np.arange(-(-key.shape[-2] // 16) * 16), key.shape[-2] - 1)
    scores = elu_plus_one(query) @ np.swapaxes(elu_plus_one(key[..., index, :]), -1, -2)
    return (scores @ value[..., index, :]) / scores.sum(-1, keepdims=True)


def test_wrong_shares_of_a_row_say_more_than_its_sum():
    op = "linear_attention_noncausal"
    diagnosis = diagnosed(padded_with_the_last_key, op)
    assert diagnosis.stage == "output"
    assert "the last source" in diagnosis.where
    assert "sources in the tail of chunks of 16" in diagnosis.where


def tiles_of_oja(query, key, value, log_decay, beta):
    """Oja's rule whose gates are to base two in all value channels from 16 on."""
    decay = np.exp(log_decay)
    decay[..., 16:] = np.exp2(log_decay[..., 16:])
    state = np.zeros((*key.shape[:2], key.shape[-1], value.shape[-1]), value.dtype)
    rows = []
    for t in range(value.shape[2]):
        q, k, v = (x[:, :, t, :, None] for x in (query, key, value))
        state = state * decay[:, :, t, None, :]
        row = np.swapaxes(v, -1, -2)
        state = state + beta[:, :, t, None, None] * (k - state @ v) @ row
        rows.append((np.swapaxes(q, -1, -2) @ state)[:, :, 0])
    scale = np.asarray(query.shape[-1] ** -0.5, query.dtype)
    return scale * np.stack(rows, 2) if rows else np.zeros_like(value)


@pytest.mark.slow
def test_tiles_of_value_channels_are_seen_where_impulses_are_in_keys():
    diagnosis = diagnosed(tiles_of_oja, "oja")
    assert diagnosis.stage == "output"
    assert "sources 1 back or more" in diagnosis.where


def test_what_is_declared_is_no_deviation():
    assert diagnosed(dense(divide=plus(1e-3)), eps=1e-3) is None
    assert diagnosed(dense(), eps=1e-3).declaration == ("eps=0",)


@pytest.mark.parametrize("op", ["linear_attention", "simple_gla"])
def test_nothing_is_said_of_a_right_kernel(op):
    kernel = {"linear_attention": dense, "simple_gla": gla}[op]()
    assert diagnosed(kernel, op) is None


def test_a_state_that_is_transposed_where_it_is_square_is_placed():
    def kernel(query, key, value, beta, initial_state=None, return_state=False):
        made = linkern.delta_rule(
            query, key, value, beta=beta, initial_state=initial_state
        )
        state = made.state.memory
        if key.shape[-1] == value.shape[-1]:
            state = np.swapaxes(state, -1, -2)
        return (made.output, state) if return_state else made.output

    diagnosis = diagnosed(kernel, "delta_rule")
    assert diagnosis.where == "calls in which K is V"
    assert diagnosis.by_what == "key channel and value channel exchanged"


def test_features_of_padding_in_a_normalizer_are_counted():
    def kernel(query, key, value, initial_state=None, return_state=False):
        made = linkern.linear_attention(query, key, value, initial_state=initial_state)
        memory, normalizer = made.state
        normalizer = normalizer + -key.shape[2] % 32
        return (made.output, (memory, normalizer)) if return_state else made.output

    diagnosis = diagnosed(kernel)
    assert diagnosis.stage == "final normalizer"
    assert diagnosis.where == "lengths that are no multiple of 32"
    assert diagnosis.by_what == "plus tokens of padding"


def of_few_shapes(kernel, op, *, shown_by=()):
    """Diagnose a target that compiles each shape, and return the stages in turn."""
    measured = []

    def look(target, scope):
        few, usual = replace(scope, few_shapes=True), MODULE._Probe._maps

        def noted(probe, stage, *seed):
            measured.append(stage.name)
            return usual(probe, stage, *seed)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MODULE._Probe, "_maps", noted)
            examine(target, few, shown_by=shown_by)

    diagnosed(kernel, op, look=look)
    return measured


@pytest.mark.parametrize(
    ("asked", "first"),
    [
        ([], "outputs"),
        ([{"cuts": (3,)}], "spans"),
        ([{"cuts": (3,)}, {"wants_state": True}], "state"),
        ([{"segments": ((0, 5),)}, {"cotangent": np.ones(1)}], "packed"),
        ([{"cotangent": np.ones(1), "cuts": (3,)}], "gradients of spans"),
        ([{"cuts": (3,)}, {}], "outputs"),
    ],
)
def test_of_slow_targets_what_failed_is_measured_first(asked, first):
    plain = Call({})
    calls = [(plain, replace(plain, **fields)) for fields in asked]
    names = of_few_shapes(gla(), "simple_gla", shown_by=calls)
    assert names[0] == first
    assert {*names} >= {"outputs", "state", "gradients"}


def test_of_two_faults_the_one_with_a_place_is_said():
    diagnosis = diagnosed(edges_of(16, -1, divide=plus(0.25)))
    assert "the last source of every chunk of 16" in diagnosis.where
    assert diagnosis.declaration == ()


def test_what_is_said_is_the_same_every_time():
    kernel = gla(finish=exchanged)
    first, second = (diagnosed(kernel, "simple_gla") for _ in range(2))
    assert first == second
    assert first.where.startswith("heads before 2")
    assert first.by_what.startswith("unlike any product")


def test_another_arrangement_of_rows_is_no_product():
    diagnosis = diagnosed(gla(finish=late), "simple_gla")
    assert diagnosis.where != ""
    assert math.isnan(diagnosis.ratio) or diagnosis.ratio > 0
    assert diagnosis.by_what == "" or "row" in diagnosis.by_what


def test_heads_that_share_a_query_are_placed_by_their_group():
    def kernel(query, key, value, log_decay):
        times = value.shape[1] // query.shape[1]
        query, key = (np.repeat(x, times, axis=1) for x in (query, key))
        log_decay = np.where(np.arange(value.shape[1])[:, None] % 2, 0, log_decay)
        return linkern.simple_gla(
            query, key, value, log_decay.astype(query.dtype)
        ).output

    diagnosis = diagnosed(kernel, "simple_gla", value_groups=True)
    places = (
        "the second head of every group",
        "heads other than the first of every group",
    )
    assert diagnosis.where.split(" and ")[0] in places


def test_rows_that_are_off_as_a_whole_are_wrong_in_their_factor():
    def kernel(query, key, value):
        output = linkern.linear_attention(query, key, value).output
        if output.shape[2] > 64:
            mixed = np.sin(3 * query[:, :, 64:].sum(-1, keepdims=True))
            output[:, :, 64:] *= 1 + mixed / 4
        return output

    diagnosis = diagnosed(kernel)
    assert diagnosis.stage == "factor of rows of the output"
    assert diagnosis.where == "rows from 64 on"
    assert diagnosis.hint.startswith("the normaliser that is carried")


def test_sequences_that_are_empty_in_the_last_call_are_told_by_it():
    kernel = UNSEEN["empty_sequence_returns_zeros"].kernel
    diagnosis = diagnosed(kernel, "simple_gla")
    assert diagnosis.stage == "final state"
    assert diagnosis.where == "sequences that are empty in the last call"
    assert diagnosis.by_what == "0"


def test_inputs_that_weigh_tokens_as_exponents_are_factors():
    def kernel(key, value, log_decay, bonus):
        keys = key + bonus[:, None] * (np.arange(key.shape[2])[:, None] == 0)
        later = linkern.rwkv4(keys, value, log_decay, bonus).output
        first = linkern.rwkv4(key, value, log_decay, bonus).output
        return np.concatenate([first[:, :, :1], later[:, :, 1:]], 2)

    diagnosis = diagnosed(kernel, "rwkv4")
    assert (diagnosis.where, diagnosis.by_what) == ("source 0", "exp(bonus)")
    assert diagnosis.hint.startswith("the bonus")


def test_a_state_that_is_read_with_the_stride_of_a_square_one_is_told_by_its_shape():
    def kernel(query, key, value, log_decay, initial_state=None):
        state, (rows, columns) = initial_state, (query.shape[3], value.shape[3])
        if state is not None:
            at = rows * np.arange(rows)[:, None] + np.arange(columns)
            at = np.minimum(at, rows * columns - 1)
            state = state.reshape(*state.shape[:2], -1)[..., at]
        inputs = query, key, value, log_decay
        output, state = linkern.simple_gla(*inputs, initial_state=state)
        return output, state.memory

    diagnosis = diagnosed(kernel, "simple_gla")
    assert diagnosis.where == "calls in which K is not V and spans from 1 on"
    assert diagnosis.hint.startswith("the strides with which a state is read")


def test_a_state_that_decays_by_the_last_gate_to_the_end_of_a_chunk_is_measured():
    def kernel(query, key, value, log_decay, initial_state=None):
        inputs = query, key, value, log_decay
        output, state = linkern.simple_gla(*inputs, initial_state=initial_state)
        padding = np.exp(-query.shape[2] % 32 * log_decay[..., -1:].sum(-1))
        return output, state.memory * padding[..., None, None]

    diagnosis = diagnosed(kernel, "simple_gla")
    assert diagnosis.where == "lengths that are no multiple of 32"
    assert diagnosis.by_what == (
        "exp(sum of log_decay over the padding of the last chunk, as at the last token)"
    )
    assert diagnosis.hint.startswith("the gates of the padding")


@pytest.mark.parametrize(
    ("name", "origin"),
    [
        ("packed_initial_state_of_the_first", "from sequence 0"),
        ("packed_final_state_of_the_last", "from the last sequence"),
        ("packed_final_states_in_reverse", None),
    ],
)
def test_the_sequence_that_a_state_is_read_from_is_said(name, origin):
    mutant = MUTANTS[name]
    diagnosis = diagnosed(mutant.kernel, mutant.op, **mutant.contract)
    assert diagnosis.stage == "output across sequences through the initial state"
    said = diagnosis.sentence.split("; ")[-1]
    assert said == origin or (origin is None and not said.startswith("from"))


@pytest.mark.parametrize(
    ("name", "where"),
    every(
        5,
        [
            (
                "packed_reset_on_chunk_grid",
                "sequences that begin inside of chunks of 16",
            ),
            ("packed_kept_past_an_empty_one", "sequences after an empty one"),
            ("packed_starts_from_the_one_before", "sequences from 1 on"),
            ("packed_initial_state_of_the_first", "sequences from 1 on"),
            (
                "packed_gradient_crosses_the_edge",
                "sequences other than the last sequence",
            ),
        ],
        slow=0.4,
    ),
)
def test_what_leaks_into_a_sequence_is_that_of_joined_ones(name, where):
    mutant = MUTANTS[name]
    diagnosis = diagnosed(mutant.kernel, mutant.op)
    assert "across sequences" in diagnosis.stage
    assert (diagnosis.where, diagnosis.by_what) == (where, "that of joined sequences")
    assert diagnosis.factor == {"kind": "moved", "words": diagnosis.by_what}


@pytest.mark.slow
def test_gradients_of_states_of_other_sequences_are_told_apart():
    mutant = MUTANTS["packed_gradients_of_states_summed"]
    diagnosis = diagnosed(mutant.kernel, mutant.op)
    through = "gradient of value across sequences through the final state"
    assert (diagnosis.stage, diagnosis.where) == (through, "everywhere")
    assert diagnosis.hint.startswith("the gradient of the initial state that is")


@pytest.mark.parametrize("left", [0.5, 3.0])
def test_a_state_that_fades_from_sequence_to_sequence_is_measured(left):
    def kernel(query, key, value, log_decay, cu_seqlens=None):
        inputs, state = (query, key, value, log_decay), None
        output = np.zeros_like(value)
        edges = [0, value.shape[2]] if cu_seqlens is None else cu_seqlens
        for a, b in pairwise(np.unique(edges)):
            before = None if state is None else left * state.memory
            tokens = (x[:, :, a:b] for x in inputs)
            result = linkern.simple_gla(*tokens, initial_state=before)
            output[:, :, a:b], state = result
        return output

    diagnosis = diagnosed(kernel, "simple_gla")
    assert diagnosis.where == "sequences from 1 on"
    assert diagnosis.by_what == (
        f"{left:g}^(sequences apart) times that of joined sequences"
    )


class Replaying:
    """Return the output of the call before if its query has the same shape."""

    def __init__(self):
        self.shape = self.output = None

    def __call__(self, query, key, value, log_decay):
        if self.shape != query.shape:
            self.shape, self.output = query.shape, gla()(query, key, value, log_decay)
        return self.output


def test_what_depends_on_other_calls_is_said_first():
    diagnosis = diagnosed(Replaying(), "simple_gla")
    assert (diagnosis.name, diagnosis.where) == ("replays_output", "")


def test_what_cannot_be_called_is_said_to_be_left_out():
    """A kernel that refuses a state is diagnosed by what remains."""

    def refusing(query, key, value, log_decay, initial_state=None):
        if initial_state is not None:
            raise NotImplementedError
        return 2 * gla()(query, key, value, log_decay)

    assert diagnosed(refusing, "simple_gla").where == "everywhere"


@pytest.mark.parametrize("seconds", every(2, (0.25, 7, 20)))
def test_of_a_slow_kernel_is_said_what_few_calls_show(monkeypatch, seconds):
    calls = []
    passed = SimpleNamespace(monotonic=lambda: float(seconds * len(calls)))
    monkeypatch.setattr("linkern.testing.target.clock.time", passed)
    monkeypatch.setattr(MODULE, "SECONDS", 30.0)

    def slow(query, key, value):
        calls.append(query.shape)
        return edges_of(16, 0)(query, key, value)

    diagnosis = diagnosed(slow)
    assert "the first source of every chunk of 16" in diagnosis.where
    (late,) = diagnosis.not_measured
    assert late.startswith("behaviour")
    assert late.endswith(": no time is left")
    assert ("outputs" in late) == (seconds > 1)
    assert ("declarations" in late) == (seconds > 1)
    # One clock is for all calls; the last one may end behind it.
    assert len(calls) <= 1 + 30 / seconds


def as_float64(query, key, value, log_decay):
    return gla()(query, key, value, log_decay).astype(np.float64)


def rounded(output):
    return (output * np.float32(4097)) - (output * np.float32(4097) - output)


@pytest.mark.parametrize(
    ("kernel", "name"),
    every(
        2,
        [
            (gla(), "unexplained"),
            (gla(finish=rounded), "output_rounded"),
            (as_float64, "returns_other_dtype"),
        ],
    ),
)
def test_every_diagnosis_says_what_was_not_measured(monkeypatch, kernel, name):
    def late(*_):
        raise OutOfTime

    monkeypatch.setattr(MODULE, "observed_before", late)
    diagnosis = diagnosed(kernel, "simple_gla", look=examine)
    assert diagnosis.name == name
    assert "behaviour: no time is left" in diagnosis.not_measured
    skipped = any("takes no state" in text for text in diagnosis.not_measured)
    # The stages behind the first wrong one are not asked for.
    assert skipped == (name in ("returns_other_dtype", "unexplained"))


def test_what_no_call_shows_is_said():
    """A kernel without states and gradients is wrong in long sequences alone."""

    def late_rows(output):
        output[..., 300:, :] *= 2
        return output

    diagnosis = diagnosed(dense(finish=late_rows))
    assert (diagnosis.where, diagnosis.by_what) == ("rows from 300 on", "2")
    said = [text.split(": ")[0] for text in diagnosis.not_measured]
    assert [x.split(",")[0] for x in said[:2]] == ["state", "spans"]
    assert any(text.startswith("gradients, gradients of all") for text in said)


@pytest.mark.slow
def test_a_kernel_of_one_shape_is_described():
    shape = {"min_length": 64, "max_length": 64, "length_multiple_of": 64}
    dims = {"key_dims": (64,), "value_dims": (64,)}
    seen = set()

    def kernel(query, key, value):
        seen.add((*query.shape[2:], value.shape[-1]))
        return edges_of(16, -1)(query, key, value)

    diagnosis = diagnosed(kernel, **shape, **dims)
    assert "the last source of every chunk of 16" in diagnosis.where
    assert diagnosis.by_what == "0"
    assert seen == {(64, 64, 64)}


def gate_misses_the_final_state():
    """A kernel whose gradient of the gate is a sum of ``q dq - k dk`` alone.

    The product of the final state and its cotangent is left out, as in mlstm_kernels.
    """
    right = recurrence("simple_gla", backward=RecurrenceBackward())

    def kernel(query, key, value, log_decay, initial_state=None):
        return right(query, key, value, log_decay, initial_state=initial_state)

    def vjp(
        query, key, value, log_decay, output_cotangent, initial_state=None,
        state_cotangent=None,
    ):  # fmt: skip
        inputs = query, key, value, log_decay
        ends = {"initial_state": initial_state, "state_cotangent": state_cotangent}
        *gradients, gate, state = right.vjp(*inputs, output_cotangent, **ends)
        if state_cotangent is not None:
            _, last = right(*inputs, initial_state=initial_state)
            gate = gate - (last * state_cotangent).sum((-1, -2))[..., None]
        return (*gradients, gate, state)

    kernel.vjp = vjp
    return kernel


def test_sequences_that_begin_with_a_chunk_and_are_not_reset_are_named():
    def kernel(query, key, value, cu_seqlens=None):
        if cu_seqlens is not None:
            inner = np.asarray(cu_seqlens)[1:-1]
            ends = cu_seqlens[:1], inner[inner % 16 > 0], cu_seqlens[-1:]
            cu_seqlens = np.concatenate(ends)
        return linkern.linear_attention(query, key, value, cu_seqlens=cu_seqlens).output

    cause = diagnosed(kernel)
    assert cause.stage == "output across sequences"
    assert cause.where == "later sequences that begin with a chunk of 16"


def test_one_gradient_that_is_wrong_through_states_is_named():
    diagnosis = diagnosed(gate_misses_the_final_state(), "simple_gla")
    assert diagnosis.stage == "gradient of log_decay across cuts"
    assert diagnosis.hint.startswith(
        "the reversed cumulative sum, or the term of the decay"
    )


def test_gradients_that_are_all_wrong_through_states_are_one():
    lost = recurrence("simple_gla", backward=RecurrenceBackward(initial=np.zeros_like))
    diagnosis = diagnosed(lost, "simple_gla")
    assert (diagnosis.stage, diagnosis.where, diagnosis.by_what) == (
        "gradient across cuts",
        "everywhere",
        "0",
    )


def with_fixed_decays(inputs):
    value = inputs["value"]
    of_heads = np.log1p(-(2.0 ** -(5.0 + np.arange(value.shape[1])))[:, None])
    decays = np.broadcast_to(of_heads, value.shape[:3]).astype(value.dtype)
    return inputs | {"log_decay": decays}


@pytest.mark.parametrize("op", every(2, ["simple_gla", "gla", "retention", "kda"]))
def test_a_gradient_of_a_state_without_the_decay_of_the_first_token(op):
    fixed = {"inputs": with_fixed_decays} if op == "retention" else {}
    right = recurrence(op, backward=RecurrenceBackward(), **fixed)

    @wraps(right.vjp)
    def vjp(**inputs):
        *gradients, state = right.vjp(**inputs)
        inputs = with_fixed_decays(inputs) if fixed else inputs
        first = np.exp(inputs["log_decay"][:, :, 0])
        missing = first.reshape(first.shape + (1,) * (4 - first.ndim))
        return (*gradients, state / missing)

    @wraps(right)
    def kernel(*inputs, **ends):
        return right(*inputs, **ends)

    kernel.vjp = vjp
    diagnosis = diagnosed(kernel, op)
    assert (diagnosis.stage, diagnosis.where) == ("gradient across cuts", "everywhere")
    words = "that without the decay of the first token after each cut"
    assert diagnosis.by_what == words


def large_values_overflow(query, key, value):
    """Return outputs that are NaN where a value is above 10,000, and else are right."""
    output = linkern.linear_attention(query, key, value).output
    return output if abs(value).max(initial=0) < 1e4 else np.full_like(output, np.nan)


class ReadsOutOfBounds(InProcess):
    """A target whose calls read past the end of an argument."""

    def call(self, call):
        reply = super().call(call)
        return replace(reply, out_of_bounds=("a load goes past the end of `h0`",))


@pytest.mark.parametrize(
    ("kernel", "sentence"),
    [
        (linkern.linear_attention, "^a load goes past the end of `h0`$"),
        (lambda q, k, v: 0 * v + np.nan, "^a load goes past the end of `h0`$"),
        (large_values_overflow, "^a load goes past the end of `h0`$"),
        (lambda q, k, v: v, ".; besides, a load goes past the end of `h0`$"),
    ],
)
def test_an_access_out_of_bounds_is_the_cause_of_numbers_that_are_not_finite(
    kernel, sentence
):
    def kept(query, key, value):
        output = kernel(query, key, value)
        return getattr(output, "output", output)

    config = TargetConfig("test", op="linear_attention")
    target = ReadsOutOfBounds(config, kept)
    scope = Scope(OPERATORS["linear_attention"], Contract(), "float32")
    said = examine(target, replace(scope, interface=target.interface)).sentence
    assert re.search(sentence, said)


def of_levels(level):
    """Return log-linear attention in which a row and a source have another level."""

    def log_linear_attention(query, key, value, log_decay, level_scales):
        row, source = np.indices((query.shape[2], key.shape[2]))
        chosen = level(row, source * (source <= row)).astype(np.int64)
        sums = np.cumsum(np.maximum(log_decay, -1e4), axis=2, dtype=np.float64)
        decays = np.exp(np.minimum(sums[..., :, None] - sums[..., None, :], 0))
        scales = level_scales[:, :, row, chosen.clip(0, level_scales.shape[-1] - 1)]
        weights = np.tril(query @ key.mT * decays * scales)
        return (weights @ value).astype(value.dtype)

    return log_linear_attention


def highest_bit(numbers):
    return np.frexp(numbers.astype(np.float64))[1]


@pytest.mark.parametrize(
    ("words", "level"),
    every(
        3,
        [
            ("level below", lambda i, j: highest_bit(i ^ j) - (i != j)),
            ("level of row - source", lambda i, j: highest_bit(i - j)),
            ("level above", lambda i, j: highest_bit(i ^ j) + 1),
        ],
        slow=0.5,
    ),
)
def test_scales_of_other_levels_are_named(words, level):
    by_what = diagnosed(of_levels(level), "log_linear_attention").by_what
    assert by_what == f"level_scales[row] of the {words} / level_scales[row]"


@pytest.mark.slow
def test_nothing_is_said_of_scales_of_the_right_levels():
    right = of_levels(lambda i, j: highest_bit(i ^ j))
    assert diagnosed(right, "log_linear_attention") is None


@pytest.mark.parametrize("name", every(2, ["query", "key"]))
def test_a_scale_inside_of_the_feature_map_is_named(name):
    def kernel(query, key, value, scale=1.0):
        inputs = {"query": query, "key": key, "value": value}
        inputs[name] = query.dtype.type(scale) * inputs[name]
        return linkern.linear_attention(**inputs).output

    by_what = diagnosed(kernel).by_what
    assert by_what == f"phi(scale * {name}) in place of phi({name})"


def mesa_of(power):
    """Return a mesa layer whose keys are in their memory with powers of beta."""

    def mesa(query, key, value, log_decay, beta, ridge, initial_state=None):
        *lead, dim = ridge.shape
        size = (len(key), *lead, dim, dim + value.shape[-1])
        state = np.zeros(size, key.dtype) if initial_state is None else initial_state
        output, ridges = np.empty_like(value), ridge[..., None] * np.eye(dim)
        for t in range(key.shape[2]):
            rate, column = beta[:, :, t, None, None], key[:, :, t, :, None]
            row = np.concatenate(
                [rate**power * column.mT, rate * value[:, :, t, None]], -1
            )
            state = np.exp(log_decay[:, :, t, None, None]) * state + column * row
            keys, values = np.split(state, [dim], axis=-1)
            solved = np.linalg.solve(keys + ridges, query[:, :, t, :, None])
            output[:, :, t] = (solved.mT @ values)[..., 0, :]
        return output, state

    return mesa


def faded_keys(query, key, value, slots, log_decay, initial_state=None, power=3):
    """Gated slot attention whose memory of keys has a power of the decay."""
    *lead, dim = key[:, :, 0].shape
    size = (*lead, slots.shape[-1], dim + value.shape[-1])
    state = np.zeros(size, key.dtype) if initial_state is None else initial_state
    keys, values = np.split(state, [dim], axis=-1)
    output = np.empty_like(value)
    for t in range(key.shape[2]):
        decay, write = np.exp(log_decay[:, :, t, :, None]), slots[:, :, t, :, None]
        keys = decay**power * keys + write * key[:, :, t, None]
        values = decay * values + write * value[:, :, t, None]
        scores = keys @ query[:, :, t, :, None] * dim**-0.5
        weights = np.exp(scores - scores.max(axis=-2, keepdims=True))
        weights = weights / weights.sum(axis=-2, keepdims=True)
        output[:, :, t] = (weights.mT @ values)[..., 0, :]
    return output, np.concatenate([keys, values], axis=-1)


@pytest.mark.parametrize(
    ("op", "kernel", "where", "by_what"),
    every(
        2,
        [
            ("mesa", mesa_of(3), "everywhere", "beta[source]^2"),
            ("mesa", mesa_of(-1), "everywhere", "1 / beta[source]^2"),
            (
                "gsa",
                faded_keys,
                "sources other than the last source",
                "exp(2 * sum of log_decay over (source, row])",
            ),
        ],
    ),
)
def test_keys_that_are_wrong_in_a_state_are_named(op, kernel, where, by_what):
    diagnosis = diagnosed(kernel, op)
    assert diagnosis.stage == "final state of keys"
    assert (diagnosis.where, diagnosis.by_what) == (where, by_what)


@pytest.mark.parametrize(
    ("op", "kernel", "by_what"),
    [
        ("mesa", mesa_of(2), "beta^2 in place of beta in the sum of keys"),
        (
            "gsa",
            partial(faded_keys, power=0),
            "0 in place of log_decay in the decay of the memory of keys",
        ),
    ],
)
def test_another_input_of_the_memory_of_keys_is_named(op, kernel, by_what):
    diagnosis = diagnosed(kernel, op)
    assert (diagnosis.stage, diagnosis.by_what) == ("output", by_what)


@pytest.mark.slow
def test_nothing_is_said_of_keys_that_are_right_in_a_state():
    assert diagnosed(mesa_of(1), "mesa") is None


def test_denominators_of_joined_sequences_are_told():
    def kernel(query, key, value, cu_seqlens=None):
        q, k = linkern.elu_plus_one(query), linkern.elu_plus_one(key)
        scores = np.tril(q @ k.mT)
        edges = [] if cu_seqlens is None else cu_seqlens
        number = np.searchsorted(edges, np.arange(query.shape[2]), side="right")
        numerators = np.where(number[:, None] == number, scores, 0)
        return (numerators @ value / scores.sum(axis=-1, keepdims=True)).astype(
            value.dtype
        )

    diagnosis = diagnosed(kernel)
    assert (diagnosis.stage, diagnosis.where) == ("output", "sequences from 1 on")
    assert diagnosis.by_what == "that with the denominators of joined sequences"


def test_rows_behind_sequences_are_in_none_that_is_joined():
    def kernel(query, key, value, cu_seqlens=None):
        output = np.full_like(value, np.nan)
        last = query.shape[2] if cu_seqlens is None else cu_seqlens[-1]
        inputs = (x[:, :, :last] for x in (query, key, value))
        result = linkern.linear_attention(*inputs, cu_seqlens=cu_seqlens)
        output[:, :, :last] = result.output
        return output

    diagnosis = diagnosed(kernel)
    assert diagnosis.stage == "output"
    assert "behind the last sequence" in diagnosis.where


def test_an_empty_sequence_has_keys_of_no_token_in_its_state():
    def kernel(query, key, value, slots, log_decay, cu_seqlens=None):
        result = linkern.gsa(query, key, value, slots, log_decay, cu_seqlens=cu_seqlens)
        memory = result.state.memory
        return result.output, memory if cu_seqlens is None else 2 * memory

    assert diagnosed(kernel, "gsa").stage == "final state"


def clamped(log_decay):
    """Return decays to rows of a chunk that are at least exp(-10), but to the last."""
    between, since = decays_between(log_decay)
    rows = np.arange(between.shape[-3])
    limited = np.tri(len(rows), dtype=bool) & (rows[:, None] < rows[-1])
    return np.where(
        limited[..., None], np.maximum(between, np.exp(-10.0)), between
    ), since


def test_a_clamp_is_told_of_weights_that_are_hidden_or_0_without_it():
    kernel = recurrence("simple_gla", decays=clamped, chunk=32)
    diagnosis = diagnosed(kernel, "simple_gla")
    assert diagnosis.by_what == "exp(-10 - sum of log_decay over (source, row])"


def test_a_clamp_is_found_where_hardly_any_number_fits():
    """The weights of decays of -20 are exp(-10): of the limits near it, few are."""

    def kernel(query, key, value, log_decay, beta):
        limited = np.maximum(log_decay, -10.0)
        return linkern.oja(query, key, value, limited, beta).output

    words = (
        "the output is as with `log_decay clamped at -10 from below` where log_decay"
    )
    assert diagnosed(kernel, "oja").sentence.startswith(words)


def without_blocks_between(log_decay):
    """Return decays that lack those of whole blocks of 16 between row and source.

    Those to the last row, with which the chunk is carried on, are right.
    """
    between, since = decays_between(log_decay)
    row = np.arange(between.shape[-3])
    block = row // 16
    total = np.cumsum(log_decay, axis=-2)
    first, end = 16 * block, np.minimum(16 * block + 16, len(block)) - 1
    skipped = total[..., first - 1, :][..., :, None, :] - total[..., None, end, :]
    apart = (block[:, None] - block >= 2) & (row[:, None] < row[-1])
    apart = apart[..., None]
    return between * np.exp(-np.where(apart, skipped, 0.0)), since


def test_a_factor_by_the_smaller_of_two_chunks_is_named():
    kernel = recurrence("gla", decays=without_blocks_between, chunk=64)
    diagnosis = diagnosed(kernel, "gla")
    assert diagnosis.by_what == "exp(-sum of log_decay over the chunks between)"


def test_a_default_that_is_made_after_padding_is_named():
    """The rate of tokens of zeros is one: they follow the momentum."""

    def kernel(query, key, value, log_alpha, log_mu, beta=None, eta=None):
        inputs = query, key, value, log_alpha, log_mu, beta, eta
        result = linkern.momentum_delta_rule(*inputs)
        memory = result.state.memory
        if beta is None:
            half = memory.shape[-2] // 2
            memory = memory.copy()
            memory[..., :half, :] += -query.shape[2] % 32 * memory[..., half:, :]
        return result.output, memory

    diagnosis = diagnosed(kernel, "momentum_delta_rule", returns_state=True)
    assert diagnosis.by_what == "zeros counted as tokens, up to a multiple of 32"


def test_a_state_that_is_wrong_after_an_initial_one_alone_is_told():
    """Outputs are wrong in the call after the next one, and say less."""

    def kernel(query, key, value, slots, initial_state=None):
        result = linkern.abc(query, key, value, slots, initial_state=initial_state)
        memory, weights = result.state
        if initial_state is not None and value.shape[2]:
            with np.errstate(divide="ignore"):
                earlier = np.exp(initial_state.normalizer)
                weights = np.log(np.exp(weights) - earlier)
        return result.output, linkern.State(memory, weights)

    diagnosis = diagnosed(kernel, "abc")
    assert diagnosis.stage == "final state"
    assert diagnosis.where == "spans from 1 on"
