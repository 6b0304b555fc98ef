"""Plans over ranks: what is refused, and what they settle."""

import numpy as np
import pytest
from click.testing import CliRunner

from linkern.cli import main
from linkern.oracle.operators import OPERATORS
from linkern.testing import UsageError, verify
from linkern.testing.checks import CHECKS
from linkern.testing.problems.context import Scope
from linkern.testing.runner import first_call
from linkern.testing.runner.plan import Plan
from linkern.testing.runner.reproduce import command, write
from linkern.testing.runner.results import CheckResult, Counterexample
from linkern.testing.runner.trials import Tried
from linkern.testing.spec.contract import Contract
from linkern.testing.target.inference import Inferred
from linkern.testing.target.protocol import Call


def plan_of(op="gla", **options):
    return Plan("kernels.py:kernel", op, **{"ranks": (2, 3)} | options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"ranks": (1,)}, "`ranks` must be numbers of at least 2, got 1"),
        ({"ranks": (2, 0)}, "`ranks` must be numbers of at least 2, got 0"),
        ({"op": "log_linear_attention"}, "of log_linear_attention are not"),
        ({"op": "rwkv4"}, "of rwkv4 are not"),
        ({"framework": "cupy"}, "not for the framework cupy"),
        ({"device": "cuda:1"}, "not for the device cuda:1"),
        ({"device": "cuda", "framework": "jax"}, "not for JAX on a device"),
        ({"in_process": True}, "not for a target in this process"),
        ({"sandbox": True}, "not for a sandbox"),
        ({"command": "./kernel {inputs} {outputs}"}, "not for a program"),
        ({"inputs": "file.safetensors"}, "not for the inputs of a file"),
        ({"contract": Contract(interface="step")}, "not for `interface=step`"),
    ],
)
def test_what_has_no_ranks_is_refused_in_one_sentence(options, expected):
    with pytest.raises(UsageError, match=expected) as refusal:
        plan_of(**options)
    assert str(refusal.value).count(". ") == 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"profile": "quick"}, ("float32",)),
        ({"profile": "smoke", "dtypes": ("float64",)}, ("float64",)),
        ({"profile": "default"}, ()),
        ({"profile": "quick", "ranks": ()}, ()),
    ],
)
def test_brief_profiles_judge_one_dtype(options, expected):
    assert plan_of(**options).dtypes == expected


def test_a_function_is_refused():
    with pytest.raises(UsageError, match="a target in this process: name it"):
        verify(lambda query, key, value: value, op="linear_attention", ranks=[2])


def test_offsets_of_a_shard_need_one_piece():
    zigzag = {"ranks_order": "zigzag", "ranks_even": True}
    with pytest.raises(UsageError, match="`ranks_cu_seqlens=shard` needs shards of"):
        Contract(**zigzag, ranks_cu_seqlens="shard")


def test_a_zigzag_needs_equal_shards():
    with pytest.raises(
        UsageError, match="`ranks_order=zigzag` needs `ranks_even=true`"
    ):
        Contract(ranks_order="zigzag")


@pytest.mark.parametrize("text", ["two", "2,", "2;3"])
def test_the_command_line_takes_numbers(text):
    words = ["verify", "kernels.py:kernel", "--op", "gla", "--ranks", text]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert f'such as 2,3; got "{text}"' in result.output.replace("\n", " ")


def test_the_whole_catalogue_has_no_ranks():
    result = CliRunner().invoke(main, ["verify", "--ranks", "2"])
    assert result.exit_code == 2
    assert "--ranks is for one target" in result.output


def test_ranks_are_settled():
    plan = plan_of(ranks=(3, 2, 3))
    assert plan.ranks == (2, 3)
    assert plan.framework == "torch"
    assert "--ranks 2,3" in command(plan, "causality")
    assert plan_of(framework="jax").framework == "jax"
    assert plan_of(interpret=True).dtypes == ("float32",)


@pytest.mark.parametrize("options", [{}, {"ranks": (), "interpret": True}])
def test_no_other_library_is_tried(options):
    refused = Tried(refused={"float32": "raised TypeError: numpy.ndarray expected"})
    inferred = Inferred("numpy")
    plan = plan_of(framework="torch", **options)
    assert not first_call._others(plan, refused, None, inferred)


def test_ranks_that_are_alike_have_shards_of_one_shape():
    contract = Contract(ranks_order="zigzag", ranks_even=True)
    over = Contract().over((2, 3), alike=True)
    assert (over.length_multiple_of, over.min_length) == (6, 3)
    assert (over.ranks_even, over.ranks_initial) == (True, "every")
    assert contract.over((2,), alike=True).length_multiple_of == 4
    assert Contract().over((2, 3)) == Contract()


def test_laws_of_one_process_are_not_judged_over_ranks():
    scope = Scope(OPERATORS["gla"], Contract(), "float32", ranks=(2,))
    reasons = {name: check.unless(scope) for name, check in CHECKS.items()}
    of_one = [n for n, why in reasons.items() if why and "one process" in why.reason]
    assert {*of_one} == {
        "bad_input",
        "batch_invariance",
        "broadcast_inputs",
        "current_stream",
        "graph_replay",
        "leaves_no_trace",
        "nothing_leaks_from_padding",
        "split_invariance",
        "strides",
        "thread_safety",
    }


@pytest.mark.parametrize(
    ("declared", "multiple", "least"),
    [({}, 1, 0), ({"ranks_even": True}, 6, 0), ({"ranks_empty": False}, 1, 3)],
)
def test_lengths_fit_the_ranks(declared, multiple, least):
    contract = Contract(**declared).over((2, 3))
    assert (contract.length_multiple_of, contract.shortest) == (multiple, least)


def test_a_zigzag_has_twice_as_many_pieces():
    zigzag = Contract(ranks_order="zigzag", ranks_even=True).over((2, 3))
    assert zigzag.length_multiple_of == 12


def test_a_counterexample_is_a_script_that_judges_again(tmp_path):
    inputs = {name: np.ones((1, 1, 2, 1)) for name in OPERATORS["gla"].names}
    example = Counterexample("T=2 on 2 ranks with 1+1 tokens", (Call(inputs),))
    result = CheckResult("causality", "the law", "failed", counterexample=example)
    text = write(plan_of(), result, example, tmp_path).read_text()
    assert "T=2 on 2 ranks with 1+1 tokens" in text
    assert "--ranks 2,3" in text.partition("AGAIN = ")[2].splitlines()[0]
    assert (tmp_path / "kernel-causality.npz").exists()
