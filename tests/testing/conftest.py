"""Reports made by hand, with everything in them that a page must be able to show."""

import math
from dataclasses import replace
from importlib import import_module

import pytest

from linkern.testing.diagnosis.diagnosis import Diagnosis, Picture
from linkern.testing.fingerprint import Fingerprint
from linkern.testing.report.report import Report
from linkern.testing.runner.plan import Plan
from linkern.testing.runner.results import CheckResult, Counterexample
from linkern.testing.spec.contract import Contract
from tests.testing.solved_once import solved_once

HOSTILE = (
    "</script><script>alert(`1`)</script><img src=x onerror=alert(2)>&\x1b[31m\u202e"
)
ERRORS = tuple(
    tuple(
        0.0 if t < 60 else (0.03, 1.7, math.inf, math.nan, 5e7)[(t * v) % 5]
        for v in range(40)
    )
    for t in range(300)
)
CURVE = tuple(3.0 if t % 64 == 0 else 0.02 * (1 + t % 7) for t in range(700))


# A chunk of two cells: its edges are drawn.
PICTURE = Picture(
    "output",
    ("row", "source"),
    (0, 8, 16, 24),
    (0, 8, 16, 24),
    (".   ", "..  ", "0<. ", "+!->"),
    tuple((0.0, math.nan, math.inf, -1e300) for _ in range(4)),
    tuple((1.0, math.nan, 0.0, 1e-300) for _ in range(4)),
    16,
    "head 1",
)
SMALLEST = Counterexample(
    input="B=1 H=1 T=2 K=1 V=1 float32, normal features",
    calls=(),
    index=[0, 0, 1, 0],
    got=math.nan,
    expected=6.0,
    bound=4.65e-06,
    ratio=math.inf,
    errors=((0.0,), (1.64,)),
    axes="(B, H, T, V)",
)
CHECKS = (
    CheckResult(
        "value_on_reals",
        "rounding alone",
        "passed",
        worst_ratio=0.61,
        curve=CURVE[1:64],
        ratios=(0.0,) * 9 + tuple(10.0 ** (n / 50 - 9) for n in range(440)),
        seconds=5.25,
    ),
    CheckResult(
        "value_on_integers",
        "no key is lost",
        "passed",
        curve=(0.0,) * 9,
        ratios=(0.0,) * 9,
    ),
    CheckResult(
        "causality",
        "the past alone",
        "failed",
        worst_ratio=math.inf,
        counterexample=replace(SMALLEST, errors=ERRORS),
        message="`query` matters",
        curve=CURVE,
    ),
    CheckResult(
        "row_normalisation",
        "weights sum to one",
        "failed",
        worst_ratio=1.64,
        counterexample=SMALLEST,
        message=HOSTILE,
        curve=(0.0, math.inf),
    ),
    CheckResult(
        "long_sequences",
        "no drift",
        "xfailed",
        worst_ratio=1e300,
        counterexample=replace(SMALLEST, errors=((1e300, 1e-300, 0.123),) * 12),
        message="it drifts (expected: it is a clock)",
        curve=(1e300, 1e-300, math.nan),
    ),
    CheckResult(
        "survival",
        "no crash",
        "failed",
        counterexample=Counterexample("B=1 H=1 T=1", (), died=True),
        message="the target was ended by SIGSEGV",
    ),
    CheckResult("scaling", "powers of two", "not_applicable", message="no power"),
    CheckResult(
        "state_split", "cuts", "skipped", message="no state", remedies=("return one",)
    ),
    CheckResult("strides", "any order", "covered", message="wrong without strides"),
    CheckResult("gradient", "right", "inconclusive", message="nothing proved"),
    CheckResult(HOSTILE, HOSTILE, "error", message="odd ` backtick\nsecond line"),
)


@pytest.fixture
def no_clock(monkeypatch):
    """Diagnose however long that takes: on a busy machine it is no less right."""
    module = import_module("linkern.testing.diagnosis.diagnose")
    monkeypatch.setattr(module, "SECONDS", math.inf)


@pytest.fixture(scope="module")
def exact_answers():
    """Answers of the oracle, computed once for all kernels with the same inputs."""
    with solved_once() as answers:
        yield answers


@pytest.fixture
def plan():
    declared = Contract.from_mapping({"eps": 1e-6, "state_dtype": "bfloat16"})
    return Plan(
        target=f"kernels.py:{HOSTILE}", op="linear_attention", contract=declared
    )


@pytest.fixture
def report(plan):
    """A report of everything at once."""
    return Report(
        plan,
        CHECKS,
        Diagnosis(
            "eps",
            f"agrees with `eps=1e-6` {HOSTILE}",
            0.4,
            ("eps=1e-6",),
            "output",
            "everywhere",
            "denominator / (denominator + 1e-6)",
            ("rows from 0 on",),
            "an epsilon in the quotient",
            PICTURE,
            ("gradients: it has none",),
        ),
        Fingerprint(
            "float32",
            {"value": 24, "key": 24, "score": 11, "state": 8, "odd": 3},
            1e-6,
            1e-9,
            64,
            ("`score_dtype` is float32, but 11 bits survive",),
        ),
        environment={
            "python": "3.11",
            "libraries": {"numpy": "2.1"},
            "blas": HOSTILE,
            "seed": 0,
        },
    )
