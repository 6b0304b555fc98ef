"""The referee verifies our own kernels in the emulator like any other target."""

from pathlib import Path

import pytest

from linkern import testing
from tests.kernels.cuda.emulator.build import require_compiler
from tests.marks import every

pytestmark = pytest.mark.usefixtures("compiler")

TARGETS = Path(__file__).parent / "emulator" / "judged.py"
# For 16-bit inputs, operands of tensor cores have 16 bits: features, scores, the state.
NARROW = {"operand_dtype": "bfloat16"}
# Checks of numbers and of time; other checks concern Python code that NumPy shares.
OF_NUMBERS = (
    *("value_on_integers", "value_on_reals", "causality", "state_split", "ranges"),
    *("nan_policy", "gradient_value"),
)
OF_WEIGHTS = ("row_normalisation", "scaling_of_values", "permutations", "strides")
OF_DECAYS = ("decay_extremes", "state_linearity")


@pytest.fixture
def compiler():
    """Skip without a compiler, before the process of a target fails."""
    require_compiler()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "dtype", "contract", "checks"),
    every(
        2,
        slow=0,
        cases=[
            ("linear_attention", "float32", {}, OF_NUMBERS + OF_WEIGHTS),
            ("simple_gla", "bfloat16", NARROW, OF_NUMBERS + OF_DECAYS),
            ("gated_delta_rule", "float32", {}, OF_NUMBERS + OF_DECAYS),
            ("gated_delta_rule", "bfloat16", {}, OF_NUMBERS + OF_DECAYS),
            ("gla", "bfloat16", {}, OF_NUMBERS + OF_DECAYS),
            ("kda", "float32", {}, OF_NUMBERS + OF_DECAYS),
        ],
    ),
)
def test_kernels_keep_the_laws(op, dtype, contract, checks):
    report = testing.verify(
        f"{TARGETS}:{op}",
        op=op,
        dtypes=[dtype],
        contract=contract,
        checks=checks,
        profile="smoke",  # emulated threads are a thousand times slower than a GPU's
        timeout=120.0,
    )
    assert report.verdict == "passed", report


def test_a_kernel_that_breaks_one_is_found():
    report = testing.verify(
        f"{TARGETS}:seeing_ahead",
        op="linear_attention",
        dtypes=["float32"],
        checks=["causality"],
        profile="quick",
        timeout=120.0,
    )
    assert report.verdict == "failed"
