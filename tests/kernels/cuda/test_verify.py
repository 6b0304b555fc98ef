"""The referee judges our own kernels, run by the emulator, as it judges anyone's."""

from pathlib import Path

import pytest

from linkern import testing
from tests.kernels.cuda.emulator.build import require_compiler

pytestmark = pytest.mark.usefixtures("compiler")

TARGETS = Path(__file__).parent / "emulator" / "judged.py"
# In 16 bits, what tensor cores multiply has 16 bits: features and all that follows.
NARROW = {"feature_dtype": "bfloat16"}
# Those that look at numbers and at time; the rest is Python code that NumPy runs too.
OF_NUMBERS = (
    *("value_on_integers", "value_on_reals", "causality", "state_split", "ranges"),
    *("nan_policy", "gradient_value"),
)
OF_WEIGHTS = ("row_normalisation", "scaling_of_values", "permutations", "strides")
OF_DECAYS = ("decay_extremes", "state_linearity")


@pytest.fixture
def compiler():
    """Skip here what would fail in the process of a target."""
    require_compiler()


@pytest.mark.parametrize(
    ("op", "dtype", "contract", "checks"),
    [
        ("linear_attention", "float32", {}, OF_NUMBERS + OF_WEIGHTS),
        ("simple_gla", "bfloat16", NARROW, OF_NUMBERS + OF_DECAYS),
        ("gated_delta_rule", "float32", {}, OF_NUMBERS + OF_DECAYS),
    ],
)
def test_kernels_keep_the_laws(op, dtype, contract, checks):
    found = testing.verify(
        f"{TARGETS}:{op}",
        op=op,
        dtypes=[dtype],
        contract=contract,
        checks=checks,
        profile="quick",
        # A simulated thread is a thousand times as slow as one of a GPU.
        timeout=120.0,
    )
    assert found.verdict == "passed", found


def test_a_kernel_that_breaks_one_is_found():
    found = testing.verify(
        f"{TARGETS}:seeing_ahead",
        op="linear_attention",
        dtypes=["float32"],
        checks=["causality"],
        profile="quick",
        timeout=120.0,
    )
    assert found.verdict == "failed"
