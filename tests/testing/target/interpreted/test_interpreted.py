"""Triton kernels on a CPU: values, accesses, unwritten memory, failures."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from linkern.testing import UsageError
from linkern.testing.checks import INTERPRETED
from linkern.testing.errors import TargetRaised
from linkern.testing.runner.plan import Plan
from linkern.testing.target.process import ChildProcess
from linkern.testing.target.protocol import Call, TargetConfig
from tests.testing.undiagnosed import undiagnosed

TARGETS = Path(__file__).parents[2] / "triton_targets.py"
LENGTH = 20  # a full tile and a tail


def config(name, **options):
    options = {"framework": "torch", "interpret": True} | options
    return TargetConfig(f"{TARGETS}:{name}", **options)


@pytest.fixture(scope="module")
def process(triton):
    process = ChildProcess(config("right"), timeout=120)
    yield process
    process.close()


@pytest.fixture
def replied(process):
    """Call a target of this name; all run in one process."""

    def replied(name, dtype=np.float32, **options):
        process.reopen(config(name))
        rng = np.random.default_rng(1)
        shapes = {"query": 3, "key": 3, "value": 2}
        inputs = {
            name: rng.standard_normal((1, 2, LENGTH, dim)).astype(dtype)
            for name, dim in shapes.items()
        }
        reply = process.call(Call(inputs, **options))
        q, k, v = (x.astype(np.float64) for x in inputs.values())
        return reply, np.tril(q @ np.swapaxes(k, -1, -2)) @ v

    return replied


@pytest.mark.parametrize(
    "name", ["right", "autotuned", "asks_for_a_device", "calls_what_is_compiled"]
)
def test_a_right_kernel_gives_its_values_and_no_finding(name, replied):
    reply, expected = replied(name)
    np.testing.assert_allclose(reply.output, expected, rtol=1e-5, atol=1e-5)
    assert reply.out_of_bounds == reply.unwritten == ()


def test_bfloat16_is_computed_as_compiled_kernels_do(replied):
    reply, expected = replied("right", dtype=ml_dtypes.bfloat16)
    assert reply.dtype == "bfloat16"
    # Sums are of float32; one rounding of the output is left, to the nearest.
    scale = np.spacing(expected.astype(ml_dtypes.bfloat16)).astype(np.float64)
    assert (abs(reply.output - expected) <= 0.51 * abs(scale) + 1e-4).all()


@pytest.mark.parametrize("name", ["tanh_of_values", "tanh_by_assembly"])
def test_libdevice_and_approximations_of_ptx_are_interpreted(name, replied):
    reply, _ = replied(name)
    rng = np.random.default_rng(1)
    rng.standard_normal((2, 1, 2, LENGTH, 3))
    expected = np.tanh(rng.standard_normal((1, 2, LENGTH, 2)))
    np.testing.assert_allclose(reply.output, expected, rtol=1e-5, atol=1e-5)


def test_a_load_out_of_bounds_is_named_and_not_made(replied):
    reply, expected = replied("reads_past_the_end")
    (finding,) = reply.out_of_bounds
    assert finding == (
        "the `tl.load` at triton_targets.py:16 in forward goes 12 bytes past the end "
        "of `k` (program 1, 1, 0)"
    )
    # The mask of the scores keeps what was read away from the output.
    np.testing.assert_allclose(reply.output, expected, rtol=1e-5, atol=1e-5)


def test_a_store_out_of_bounds_is_named_and_not_made(replied):
    reply, _ = replied("writes_past_the_end")
    (finding,) = reply.out_of_bounds
    assert "`tl.store` at" in finding
    assert "8 bytes past the end of `o`" in finding


def test_atomics_out_of_bounds_are_named_and_not_made(replied):
    reply, _ = replied("counts_out_of_bounds")
    past, before = reply.out_of_bounds
    assert "`tl.atomic` at" in past
    assert "4 bytes past the end of `counts`" in past
    assert "4 bytes before the beginning of `counts`" in before


def test_addresses_from_a_table_are_those_of_any_tensor(replied):
    reply, _ = replied("loads_through_a_table")
    (finding,) = reply.out_of_bounds
    assert "goes to an address that is in no tensor" in finding


def test_every_configuration_can_be_chosen(replied):
    taken = []
    for position in (None, 0, 1, 2, 3):
        reply, expected = replied("wrong_in_one_configuration", configuration=position)
        taken.append(reply.configurations)
        # Warps are nothing to the interpreter: two of four configurations are one.
        assert reply.variants == 3
        right = bool(abs(reply.output - expected).max() < 1e-4)
        assert right == (reply.configurations != ("forward (BT=16)",))
    tiles = ("forward (BT=64)", "forward (BT=16)", "forward (BT=32)")
    first, *others = [(tile,) for tile in tiles]
    assert taken == [first, first, *others, first]


def test_one_kernel_can_take_a_configuration_alone(replied):
    name = "wrong_in_one_configuration"
    reply, _ = replied(name, configuration=1, tuned="another")
    assert reply.configurations == ("forward (BT=64)",)
    reply, _ = replied(name, configuration=1, tuned="forward")
    assert reply.configurations == ("forward (BT=16)",)
    reply, _ = replied("right", configuration=1)
    assert (reply.configurations, reply.variants) == ((), 1)


@pytest.mark.parametrize("fill", ["nan", "large"])
def test_memory_that_nothing_wrote_is_filled_and_its_load_is_named(fill, replied):
    reply, expected = replied("adds_to_empty_memory", fill=fill)
    (finding,) = reply.unwritten
    assert "reads 32 numbers of `o` that nothing wrote" in finding
    if fill == "nan":
        assert np.isnan(reply.output).all()
    else:
        assert (abs(reply.output - expected) > 1e30).all()


def test_gradients_of_an_autograd_function_are_those_of_its_kernels(replied):
    cotangent = np.ones((1, 2, LENGTH, 2), np.float32)
    reply, _ = replied("with_gradients", cotangent=cotangent)
    assert [x.shape[-1] for x in reply.gradients] == [3, 3, 2]
    assert reply.out_of_bounds == ()
    reply, _ = replied("reads_past_the_end_backwards", cotangent=cotangent)
    assert "past the end of `k`" in reply.out_of_bounds[0]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "uses_assembly",
            "what Triton's interpreter does not support at .*the inline assembly ``",
        ),
        ("does_not_broadcast", "the kernel mismatched failed at triton_targets.py:"),
        ("needs_a_device", "expected tensors on a CUDA device"),
    ],
)
def test_a_launch_that_fails_is_one_sentence(name, words, replied):
    with pytest.raises(TargetRaised, match=words) as raised:
        replied(name)
    assert "\n" not in str(raised.value)
    assert "LaunchFailed" not in str(raised.value)


def test_a_target_of_another_library_is_refused(process):
    with pytest.raises(UsageError, match="is for Triton kernels on arrays of torch"):
        process.reopen(config("right", framework="numpy"))


@pytest.mark.parametrize(
    "options", [{"in_process": True}, {"framework": "jax"}, {"device": "cuda"}]
)
def test_what_cannot_be_interpreted_is_refused_before_the_run(options):
    with pytest.raises(UsageError, match="`interpret`"):
        Plan("kernel.py:f", "linear_attention", interpret=True, **options)


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("right", ""),
        ("reads_past_the_end", "no_access_out_of_bounds"),
        ("leaves_the_last_tile", "no_uninitialised_memory"),
        ("adds_to_empty_memory", "no_uninitialised_memory"),
        ("wrong_in_one_configuration", "every_configuration"),
    ],
)
@pytest.mark.slow
def test_each_law_fails_on_a_kernel_that_breaks_it_alone(name, broken, triton):
    report = undiagnosed(
        f"{TARGETS}:{name}",
        op="linear_attention",
        contract={"feature_map": "identity", "normalize": False},
        interpret=True,
        profile="smoke",
        seed=0,
        timeout=120,
        jobs=1,
        checks=INTERPRETED,
    )
    assert [check.name for check in report.failures] == [broken] * bool(broken)
    assert any("Triton's interpreter" in note for note in report.notes)
    assert report.to_dict()["interpreted"]
    if name == "wrong_in_one_configuration":
        words = "the output is wrong in a configuration of forward (BT="
        assert words in report.failures[0].message
