"""Packed sequences: each has its outputs, its states and its gradients."""

from itertools import pairwise, product

import numpy as np
import pytest

import linkern
from linkern.testing.api import plan_of, report_of, reports
from linkern.testing.kernels.assembly import (
    Parts,
    RecurrenceBackward,
    packed,
    recurrence,
    stateful,
)
from linkern.testing.report import bundle
from tests.marks import in_turn, slow_unless
from tests.testing.checks.test_gated import complaints, fails, judge

OUTPUTS, STATES, GRADIENTS = LAWS = (
    "packed_equals_separate",
    "packed_states",
    "packed_gradients",
)
DELTA = recurrence("gated_delta_rule", backward=RecurrenceBackward())


def verdicts(kernel, op, *checks, **options):
    return [judge(kernel, op, check, **options)[check].verdict for check in checks]


# -- kernels that are right


def with_states_apart(kernel):
    """Return the states in a form that the operator does not have: a dict of lists."""

    def apart(
        query, key, value, log_decay=None, *, initial_state=None, cu_seqlens=None
    ):
        state = initial_state
        if state is not None:
            state = np.stack([*state["each"]])
        output, state = kernel(
            query, key, value, log_decay, initial_state=state, cu_seqlens=cu_seqlens
        )
        return output, {"each": [np.array(x) for x in state], "kind": "apart"}

    return apart


RIGHT = {
    "gated_delta_rule": packed(DELTA, "gated_delta_rule"),
    "linear_attention": packed(stateful(Parts(chunk=64))),
    "simple_gla": with_states_apart(packed(recurrence("simple_gla"), "simple_gla")),
    "gsa": linkern.gsa,
    "gla": linkern.gla,
}


@pytest.mark.parametrize("op", slow_unless(lambda op: op == "gla", RIGHT))
def test_right_kernels_pass(op):
    assert not complaints(RIGHT[op], op, *LAWS, profile="quick")


@pytest.mark.parametrize(
    ("op", "dtype"),
    in_turn(
        lambda *_: False,
        product(["rwkv6", "delta_rule"], ["float64", "bfloat16", "float16"]),
    ),
)
def test_right_kernels_pass_in_every_dtype(op, dtype):
    pytest.importorskip("ml_dtypes")
    kernel = packed(recurrence(op, backward=RecurrenceBackward()), op)
    laws = (*LAWS, "gradient_of_state")
    assert not complaints(kernel, op, *laws, dtypes=(dtype,))


@pytest.mark.parametrize("leaks", [False, True])
def test_targets_in_torch(leaks, torch):
    def one_sequence(q, k, v, state):
        states = state[..., None, :, :] + torch.cumsum(
            k[..., :, None] * v[..., None, :], -3
        )
        read = (q[..., None] * states).sum(-2)
        return read, states[..., -1, :, :] if v.shape[-2] else state

    def kernel(query, key, value, *, initial_state=None, cu_seqlens=None):
        edges = [0, query.shape[-2]] if cu_seqlens is None else cu_seqlens.tolist()
        outputs, states = [], []
        for n, (a, b) in enumerate(pairwise(edges)):
            q, k, v = (x[..., a:b, :] for x in (query, key, value))
            state = k.new_zeros((*k.shape[:-2], k.shape[-1], v.shape[-1]))
            if initial_state is not None:
                mine = initial_state[n : n + 1] if cu_seqlens is not None else None
                state = initial_state if mine is None else mine
            if leaks and n and states:  # adds nothing, but a gradient
                state = state + (states[-1] - states[-1].detach())
            read, state = one_sequence(q, k, v, state)
            outputs.append(read)
            states.append(state)
        slack = torch.zeros_like(value[..., edges[-1] :, :])
        return torch.cat([*outputs, slack], -2), torch.cat(states)

    options = {
        "framework": "torch",
        "contract": {"feature_map": "identity", "normalize": "false"},
    }
    assert not complaints(kernel, "linear_attention", OUTPUTS, STATES, **options)
    expected = "failed" if leaks else "passed"
    assert verdicts(kernel, "linear_attention", GRADIENTS, **options) == [expected]


# -- defects that no mutant has


def test_a_normalizer_of_one_value_is_no_memory():
    """With an axis for the batch it has the shape of a memory without one."""

    def call(*inputs, cu_seqlens=None, initial_state=None):
        options = {"cu_seqlens": cu_seqlens, "initial_state": initial_state}
        return linkern.linear_attention(*inputs, **options)

    smallest = {"key_dims": (1,), "value_dims": (1,)}
    assert verdicts(call, "linear_attention", STATES, contract=smallest) == ["passed"]


def test_a_state_that_is_lost_is_found_in_any_form():
    def lost(states, n, edges):
        return None if n == 1 or states is None else states[n : n + 1]

    right = recurrence("simple_gla")
    wrong = with_states_apart(packed(right, "simple_gla", initial=lost))
    assert fails(wrong, "simple_gla", STATES, "do not go on from their states")
    assert verdicts(wrong, "simple_gla", OUTPUTS) == ["passed"]


def test_what_goes_wrong_without_a_state_is_reported_once():
    def from_zero(edges):
        return [(edges[0], edges[-1], 0)]

    wrong = packed(DELTA, "gated_delta_rule", spans=from_zero)
    assert verdicts(wrong, "gated_delta_rule", *LAWS[:2]) == ["failed", "covered"]
    message = judge(wrong, "gated_delta_rule", STATES)[STATES].message
    assert message.endswith("inputs: packed_equals_separate says so")


def test_a_counterexample_with_states_can_be_run_again(tmp_path):
    path = tmp_path / "first.py"
    path.write_text(
        "from linkern.testing.kernels.assembly import one_state, packed, recurrence\n"
        "def of_the_first(states, n, edges, *rest):\n"
        "    return one_state(states, 0, edges)\n"
        "kernel = packed(recurrence('gla'), 'gla', initial=of_the_first)\n"
    )
    plan = plan_of(
        f"{path}:kernel",
        op="gla",
        dtypes=("float32",),
        profile="quick",
        checks=(STATES,),
    )
    report = report_of(plan)
    for _, so_far in reports(plan):
        report = so_far
    assert report.verdict == "failed"
    bundle.write(report, tmp_path / "bundle")
    (again,) = bundle.check(tmp_path / "bundle")
    assert again.outcome == "reproduced", again.said


def of_int32(query, key, value, g=None, *, cu_seqlens=None):
    assert cu_seqlens is None or cu_seqlens.dtype == np.int32
    return without_state(query, key, value, g, cu_seqlens=cu_seqlens)


def test_offsets_have_the_declared_dtype():
    assert fails(of_int32, "gla", OUTPUTS, "raised AssertionError")
    declared = {"contract": {"cu_seqlens_dtype": "int32"}}
    assert verdicts(of_int32, "gla", OUTPUTS, **declared) == ["passed"]


def test_rows_of_no_sequence_are_not_judged_where_there_are_none():
    kernel = packed(recurrence("kda"), "kda", empty=lambda x: np.full_like(x, np.nan))
    assert fails(kernel, "kda", OUTPUTS, "rows after the last packed sequence")
    declared = {"contract": {"packing": "full"}}
    assert verdicts(kernel, "kda", OUTPUTS, **declared) == ["passed"]


# -- targets that are not judged


def without_state(query, key, value, log_decay=None, *, cu_seqlens=None):
    kernel = packed(recurrence("gla"), "gla")
    return kernel(query, key, value, log_decay, cu_seqlens=cu_seqlens)[0]


def keeping_states(query, key, value, g=None, *, initial_state=None, cu_seqlens=None):
    kernel = packed(recurrence("gla"), "gla")
    state = initial_state if cu_seqlens is None else None
    output, state = kernel(
        query, key, value, g, initial_state=state, cu_seqlens=cu_seqlens
    )
    return (output, state) if cu_seqlens is None else output


def refusing(query, key, value, g=None, *, initial_state=None, cu_seqlens=None):
    if cu_seqlens is not None and initial_state is not None:
        msg = "no states of packed sequences"
        raise NotImplementedError(msg)
    kernel = packed(recurrence("gla"), "gla")
    return kernel(
        query, key, value, g, initial_state=initial_state, cu_seqlens=cu_seqlens
    )


def plain_gradients():
    kernel = packed(recurrence("gla"), "gla")
    kernel.vjp = recurrence("gla", backward=RecurrenceBackward()).vjp
    return kernel


@pytest.mark.parametrize(
    ("kernel", "check", "words"),
    [
        (recurrence("gla"), OUTPUTS, "no parameter cu_seqlens"),
        (without_state, STATES, "takes no state, and returned none"),
        (keeping_states, STATES, "no state for packed"),
        (refusing, STATES, "does not implement"),
        (plain_gradients(), GRADIENTS, "`vjp` takes no packed"),
    ],
)
def test_targets_that_do_not_promise_it_are_not_judged(kernel, check, words):
    result = judge(kernel, "gla", check)[check]
    assert result.verdict == "skipped"
    assert words in result.message
    assert result.remedies


@pytest.mark.parametrize("first", [0, 1])
def test_final_states_of_a_kernel_that_takes_none_are_judged(first):
    def kernel(query, key, value, g=None, *, cu_seqlens=None):
        inputs = (query, key, value, g)
        output, state = packed(recurrence("gla"), "gla")(*inputs, cu_seqlens=cu_seqlens)
        if cu_seqlens is not None:  # that of each sequence, or of the one before it
            state = np.roll(state, first, 0)
        return output, state

    result = judge(kernel, "gla", STATES)[STATES]
    assert result.verdict == ("failed" if first else "passed")


def test_one_token_at_a_time_is_not_packed():
    def step(query, key, value, log_decay, state, cu_seqlens=None): ...

    options = {"contract": {"interface": "step"}}
    assert verdicts(step, "gla", OUTPUTS, **options) == ["not_applicable"]
