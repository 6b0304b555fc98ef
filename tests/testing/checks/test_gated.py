"""Operators with gates: right kernels pass every check, planted defects fail theirs."""

import re
from functools import wraps
from itertools import product

import numpy as np
import pytest

import linkern
from linkern.testing import CHECKS, UsageError, run
from linkern.testing.api import plan_of, report_of, reports
from linkern.testing.errors import INAPPLICABLE
from linkern.testing.report import bundle
from linkern.testing.runner.loop import CheckFinished
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import OPERATORS
from linkern.testing.target.loading import load
from tests.marks import in_turn, slow_unless
from tests.testing.gated_targets import (
    KERNELS,
    chunked_gated_delta_rule,
    gated_delta_rule,
    gla,
    kda,
    recurrent,
    rwkv6,
    simple_gla,
    wide,
)


def judge(kernel, op, *checks, contract=None, **options):
    options = {"profile": "quick", "dtypes": ("float32",), "diagnose": False} | options
    plan = plan_of(
        kernel, op=op, contract=contract, checks=checks, shrink=False, **options
    )
    found = [e.result for e in run(plan) if isinstance(e, CheckFinished)]
    return {result.name: result for result in found}


def complaints(*args, **options):
    good = ("passed", *INAPPLICABLE)
    found = judge(*args, **options)
    return {n: r.message for n, r in found.items() if r.verdict not in good}


def fails(kernel, op, check, words="", **options):
    result = judge(kernel, op, check, **options)[check]
    assert result.verdict == "failed", result
    assert words in result.message
    return True


# -- values

# A chunkwise form of a rule that decays and erases.
KEPT = ("chunked gated_delta_rule",)


# Of each other kernel a third of the laws has its turn.
THIRDS = {f"{n + 1} of 3": [*CHECKS][n::3] for n in range(3)}


@pytest.mark.parametrize(
    ("name", "part"),
    in_turn(lambda name, part: name in KEPT, product(KERNELS, THIRDS), step=2),
)
def test_right_kernels_pass_every_check(name, part):
    assert not complaints(KERNELS[name], name.split()[-1], *THIRDS[part], seed=1)


@pytest.mark.parametrize(
    ("name", "dtype"),
    in_turn(
        lambda *_: False, product(["gla", "kda"], ["float64", "bfloat16", "float16"])
    ),
)
def test_right_kernels_pass_in_every_dtype(name, dtype):
    pytest.importorskip("ml_dtypes")
    checks = ("value_on_integers", "value_on_reals", "state_split", "decay_extremes")
    assert not complaints(KERNELS[name], name, *checks, dtypes=(dtype,))


def without_erase(q, k, v, g=None, beta=None, *, scale=None, initial_state=None):
    """Token 15 is written, but takes nothing back."""
    given = (q, k, v, g, beta, scale, initial_state)
    return recurrent(*given, erases=True, skipped=15)


def spoilt(kernel, change):
    """A kernel whose inputs are changed on the way, and that is called by name."""

    @wraps(kernel)
    def wrong(**given):
        return kernel(**change(given))

    return wrong


def edge_without_decay(given):
    name = next((n for n in ("log_decay", "g", "w") if n in given), None)
    if name is None or given[name].shape[2] <= 16:
        return given
    g = given[name].copy()
    g[:, :, 16] = 0
    return {**given, name: g}


def beta_of_head_before(given):
    beta = given.get("beta")
    return given if beta is None else {**given, "beta": np.roll(beta, 1, axis=1)}


def first_bonus_for_all(given):
    bonus = given.get("u")
    if bonus is None:
        return given
    return {**given, "u": np.broadcast_to(bonus[:1], bonus.shape)}


def decay_of_next_channel(given):
    g = given.get("log_decay", given.get("g"))
    name = "log_decay" if "log_decay" in given else "g"
    return given if g is None else {**given, name: np.roll(g, 1, axis=-1)}


def rounded_state(kernel):
    @wraps(kernel)
    def wrong(**given):
        output, state = kernel(**given)
        bits = state.astype(np.float32).view(np.uint32) & 0xFFFF0000
        return output, bits.view(np.float32).astype(state.dtype)

    return wrong


MUTANTS = [
    (simple_gla, "simple_gla", edge_without_decay, "value_on_reals"),
    (gla, "gla", decay_of_next_channel, "value_on_reals"),
    (rwkv6, "rwkv6", first_bonus_for_all, "value_on_reals"),
    (kda, "kda", edge_without_decay, "value_on_reals"),
    (kda, "kda", beta_of_head_before, "value_on_random_reals"),
    (kda, "kda", beta_of_head_before, "heads_independent"),
    (gated_delta_rule, "gated_delta_rule", edge_without_decay, "value_on_integers"),
    (
        chunked_gated_delta_rule,
        "gated_delta_rule",
        edge_without_decay,
        "value_on_random_reals",
    ),
]


@pytest.mark.parametrize(("kernel", "op", "change", "check"), MUTANTS)
def test_planted_defects_are_found(kernel, op, change, check):
    assert fails(spoilt(kernel, change), op, check)


@pytest.mark.parametrize("check", ["value_on_integers", "value_on_reals", "reduction"])
def test_an_erase_that_is_skipped_is_found(check):
    assert fails(without_erase, "kda", check)


@pytest.mark.parametrize("kernel", [gla, kda])
def test_a_narrow_state_is_found(kernel):
    assert fails(rounded_state(kernel), kernel.__name__, "state_split")
    assert fails(rounded_state(kernel), kernel.__name__, "state_value", "the memory")


def test_a_decay_that_is_divided_out_is_found():
    """The textbook ratio of cumulative decays: infinite where decays are strong."""

    def ratio(query, key, value, log_decay=None):
        q, k, v = wide(query, key, value)
        g = np.zeros_like(k) if log_decay is None else log_decay.astype(q.dtype)
        total = np.cumsum(g, axis=-2)
        with np.errstate(all="ignore"):
            scores = (q * np.exp(total)) @ np.swapaxes(k * np.exp(-total), -1, -2)
            output = np.tril(scores) @ v * np.asarray(q.shape[-1] ** -0.5, q.dtype)
        return output.astype(query.dtype)

    assert fails(ratio, "gla", "decay_extremes", "not finite")
    assert fails(ratio, "gla", "value_on_reals")


def test_a_future_that_leaks_through_a_gate_is_found():
    def mean_decay(q, k, v, g=None, beta=None, *, initial_state=None, scale=None):
        if g is not None and g.size:
            g = (g - g.mean(axis=-2, keepdims=True)).astype(g.dtype)
        return kda(q, k, v, g, beta, initial_state=initial_state, scale=scale)

    assert fails(mean_decay, "kda", "causality")


def test_a_default_that_is_not_neutral_is_found():
    def half(q, k, v, g=None, beta=None, *, scale=None, initial_state=None):
        beta = np.full(v.shape[:-1], 0.5, v.dtype) if beta is None else beta
        return kda(q, k, v, g, beta, scale=scale, initial_state=initial_state)

    assert fails(half, "kda", "option_neutrality")


def test_a_default_that_is_wrong_in_the_state_alone_is_found():
    def kept(q, k, v, g=None, beta=None, *, scale=None, initial_state=None):
        output, state = kda(q, k, v, g, beta, scale=scale, initial_state=initial_state)
        return output, 0.5 * state if beta is None else state

    message = "without its beta the memory after the last token"
    assert fails(kept, "kda", "option_neutrality", message)
    assert judge(kept, "kda", "state_value")["state_value"].verdict == "passed"


def test_a_default_that_is_wrong_in_a_gradient_alone_is_found():
    def kernel(q, k, v, g=None, beta=None, *, scale=None):
        return linkern.kda(q, k, v, g, beta, scale=scale).output

    def halved(do, q, k, v, g=None, beta=None, *, scale=None):
        _, pullback = linkern.vjp(linkern.kda, q, k, v, g, beta, scale=scale)
        gradients = pullback(do)
        names = ("query", "key", "value", "log_decay", "beta")
        gradients["query"] = gradients["query"] * (0.5 if beta is None else 1.0)
        return [gradients.get(name) for name in names]

    kernel.vjp = halved
    message = "without its log_decay, beta the gradient of the query"
    checks = "option_neutrality", "gradient_value"
    results = judge(kernel, "kda", *checks, dtypes=("float64",))
    assert results["option_neutrality"].message.startswith(message)
    assert results["gradient_value"].verdict == "passed"


def test_a_state_that_is_clipped_is_found():
    def clipped(q, k, v, g=None, beta=None, *, scale=None, initial_state=None):
        if initial_state is not None:
            initial_state = np.clip(initial_state, -0.1, 0.1)
        return kda(q, k, v, g, beta, scale=scale, initial_state=initial_state)

    assert fails(clipped, "kda", "state_linearity", "do not add up")
    assert fails(clipped, "kda", "state_split")


def test_a_wrong_shortcut_is_found():
    def shortcut(q, k, v, g=None, beta=None, *, scale=None, initial_state=None):
        if g is not None and not g.any():
            beta = None
        return kda(q, k, v, g, beta, scale=scale, initial_state=initial_state)

    assert fails(shortcut, "kda", "reduction", "delta_rule")


# -- parameters, declarations and layouts


def test_parameters_are_recognised_by_name_in_any_order():
    names = load(gated_delta_rule, "k:gated", op="gated_delta_rule").interface.inputs
    assert names == ("q", "k", "v", "g", "beta")
    assert load(rwkv6, "k:rwkv6", op="rwkv6").interface.inputs == tuple("rkvwu")

    def positional(x, y, z, decay_of_token):
        return x

    assert not load(positional, "k:p", op="simple_gla").interface.inputs


def test_a_gate_without_a_parameter_is_refused():
    def ungated(q, k, v, beta):
        return q

    sentence = '"k:u" has no parameter for the log_decay of kda'
    with pytest.raises(UsageError, match=re.escape(sentence)):
        load(ungated, "k:u", op="kda")


def test_operators_whose_inputs_a_target_takes_are_named():
    def low_rank(r, w, k, v, a, b, scale=1.0):
        return r

    with pytest.raises(UsageError, match=r"They are the inputs of `--op dplr`\.$"):
        load(low_rank, "k:low_rank", op="rwkv7")

    def of_no_operator(q, k, v, beta, mask):
        return q

    with pytest.raises(UsageError, match=r"call it log_decay or [^`]*\.$"):
        load(of_no_operator, "k:of_no_operator", op="kda")


def test_the_names_of_rwkv7():
    def with_rate(r, w, k, v, kappa, a):
        return r

    def with_low_rank(r, w, k, v, a, b):
        return r

    inputs = load(with_rate, "k:r", op="rwkv7").interface.inputs
    assert inputs == ("r", "k", "v", "w", "kappa", "a")
    with pytest.raises(UsageError, match="removal_key"):
        load(with_low_rank, "k:l", op="rwkv7")


@pytest.mark.parametrize(
    ("op", "declared", "words"),
    [
        ("kda", {"eps": 1e-6}, "`eps` means nothing for kda"),
        ("delta_rule", {"decay_log_base": "2"}, "`decay_log_base` means nothing"),
        ("linear_attention", {"l2norm": 0}, "`l2norm` means nothing"),
        ("hgrn", {"scale": 2.0}, "`scale` means nothing for hgrn"),
    ],
)
def test_declarations_that_mean_nothing_are_refused(op, declared, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        plan_of(kda, op=op, contract=declared)


VALUES = ("value_on_integers", "value_on_reals", "decay_extremes")


def in_base_two(q, k, v, g=None, beta=None, *, scale=None, initial_state=None):
    g = None if g is None else g.astype(np.float64) * np.log(2)
    given = (q, k, v, g if g is None else g.astype(np.float32), beta, scale)
    return recurrent(*given, initial_state, erases=True)


def with_factors(q, k, v, g=None, beta=None, *, scale=None, initial_state=None):
    with np.errstate(divide="ignore"):
        g = None if g is None else np.log(g.astype(np.float64)).astype(np.float32)
    return recurrent(q, k, v, g, beta, scale, initial_state, erases=True)


def from_raw_gates(q, k, v, g, beta=None, *, scale=None, initial_state=None):
    g = (-np.logaddexp(0, -g.astype(np.float64))).astype(np.float32)
    return recurrent(q, k, v, g, beta, scale, initial_state, erases=True)


def normalising(q, k, v, g=None, beta=None, *, scale=None, initial_state=None):
    def unit(x):
        wider = x.astype(np.float32)
        norm = np.sqrt((wider * wider).sum(-1, keepdims=True) + np.float32(1e-6))
        return wider / norm

    output, state = recurrent(
        unit(q), unit(k), v, g, beta, scale, initial_state, erases=True
    )
    return output.astype(q.dtype), state


def grouped(q, k, v, g=None, beta=None, *, scale=None, initial_state=None):
    groups = v.shape[1] // max(k.shape[1], 1)
    q, k = (np.repeat(x, groups, axis=1) for x in (q, k))
    return recurrent(q, k, v, g, beta, scale, initial_state, erases=True)


def transposing(q, k, v, g=None, beta=None, *, scale=None, initial_state=None):
    before = None if initial_state is None else np.swapaxes(initial_state, -1, -2)
    output, state = recurrent(q, k, v, g, beta, scale, before, erases=True)
    return output, np.swapaxes(state, -1, -2).copy()


def heads_last(q, k, v, g=None, beta=None, *, scale=None, initial_state=None):
    def turned(x):
        return None if x is None else np.swapaxes(x, 1, 2)

    given = [turned(x) for x in (q, k, v, g, beta)]
    output, state = recurrent(*given, scale, initial_state, erases=True)
    return np.ascontiguousarray(turned(output)), state


@pytest.mark.parametrize(
    ("kernel", "declared", "checks"),
    slow_unless(
        lambda x, *_: x in (in_base_two, heads_last),
        [
            (in_base_two, {"decay_log_base": "2"}, VALUES),
            (with_factors, {"decay_form": "factor"}, VALUES),
            (from_raw_gates, {"decay_form": "logsigmoid"}, VALUES),
            (normalising, {"l2norm": 1e-6}, ("value_on_reals", "state_value")),
            (grouped, {"value_groups": True}, (*VALUES, "heads_independent")),
            (transposing, {"state_layout": "vk"}, ("state_value", "state_split")),
            (heads_last, {"layout": "bthd"}, (*VALUES, "state_value", "state_split")),
        ],
    ),
)
def test_declarations_are_taken_at_their_word(kernel, declared, checks):
    assert not complaints(kernel, "kda", *checks, contract=declared)
    found = judge(kernel, "kda", *checks)
    undeclared = {result.verdict for result in found.values()}
    # More heads of values are only asked for where they are declared.
    assert ("failed" in undeclared) != (kernel in (grouped, transposing))
    if kernel is grouped:
        with pytest.raises(UsageError, match="without `--declare value_groups=`"):
            judge(kda, "kda", "value_on_reals", contract=declared)


def test_a_state_that_is_transposed_is_not_compared():
    result = judge(transposing, "kda", "state_value")["state_value"]
    assert result.verdict in ("failed", "skipped")


# -- gradients


def torch_kernel(torch, *, erases, lost=False):
    def kernel(query, key, value, log_decay=None, beta=None, *, initial_state=None):
        k, v, g = key, value, log_decay
        g = v.new_zeros(v.shape[:-1]) if g is None else g
        g = g[..., None] if g.ndim < v.ndim else g
        state = initial_state
        if state is None:
            state = v.new_zeros((*v.shape[:-2], k.shape[-1], v.shape[-1]))
        outputs = []
        for t in range(v.shape[-2]):
            decay = g[..., t, :, None]
            state = (decay.detach() if lost and t == 3 else decay).exp() * state
            written = v[..., t, :]
            if erases:
                held = (k[..., t, :, None] * state).sum(-2)
                written = written - held
                if beta is not None:
                    written = beta[..., t, None] * written
            state = state + k[..., t, :, None] * written[..., None, :]
            outputs.append((query[..., t, :, None] * state).sum(-2))
        joined = torch.stack(outputs, -2) if outputs else torch.zeros_like(v)
        return joined * query.shape[-1] ** -0.5, state

    if erases:
        return kernel
    return lambda query, key, value, log_decay=None, *, initial_state=None: kernel(
        query, key, value, log_decay, initial_state=initial_state
    )


GRADIENTS = ("gradient_value", "gradient_of_state", "finite_differences")


@pytest.mark.parametrize(
    ("op", "erases", "more"),
    [("gla", False, ("time_reversal_adjoint",)), ("kda", True, ())],
)
def test_gradients_of_gates(op, erases, more, torch):
    options = {"framework": "torch", "dtypes": ("float64",)}
    right = torch_kernel(torch, erases=erases)
    assert not complaints(right, op, *GRADIENTS, *more, **options)
    wrong = torch_kernel(torch, erases=erases, lost=True)
    assert fails(wrong, op, "gradient_value", "gradient of the log_decay", **options)
    assert fails(wrong, op, "finite_differences", **options)


def test_gradients_whose_decays_are_off_by_one_are_found(torch):
    right = torch_kernel(torch, erases=False)

    def wrong(query, key, value, log_decay=None):
        output, _ = right(query, key, value, log_decay)
        if log_decay is None:
            return output
        late, _ = right(query, key, value, torch.roll(log_decay, 1, dims=-2))
        # The output is right, and the gradient that of other decays.
        return late + (output - late).detach()

    options = {"framework": "torch", "dtypes": ("float64",)}
    assert fails(wrong, "gla", "time_reversal_adjoint", "run backwards", **options)
    assert fails(wrong, "gla", "gradient_value", **options)


# -- files


def test_a_counterexample_of_gates_can_be_run_again(tmp_path):
    path = tmp_path / "forgets.py"
    path.write_text(
        "import numpy as np\n"
        "def forgets(q, k, v, g=None, beta=None):\n"
        "    scores = np.tril(q @ np.swapaxes(k, -1, -2))\n"
        "    return (scores @ v).astype(q.dtype)\n"
    )
    plan = plan_of(
        f"{path}:forgets",
        op="gated_delta_rule",
        dtypes=("float32",),
        profile="quick",
        checks=("value_on_reals",),
    )
    report = report_of(plan)
    for _, so_far in reports(plan):
        report = so_far
    assert report.verdict == "failed"
    bundle.write(report, tmp_path / "bundle")
    (again,) = bundle.check(tmp_path / "bundle")
    assert again.outcome == "reproduced", again.said


def test_what_the_oracle_is_asked_is_what_operators_say():
    for operator in OPERATORS.values():
        if not operator.feature_map:
            assert set(operator.linear) <= {*operator.names}
            assert Contract().factor(operator.scale, 4) in (1.0, 0.5)
    assert {"reduction", "decay_extremes", "packed_equals_separate"} <= {*CHECKS}
