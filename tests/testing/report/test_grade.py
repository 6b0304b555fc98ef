"""The grade: one small schema, and a score that no output of zeros earns."""

import json
from dataclasses import fields
from importlib import resources

import numpy as np
import pytest

from linkern.testing import CHECKS, OPERATORS, Plan
from linkern.testing.api import report_of, reports
from linkern.testing.report.grade import (
    GRADE_SCHEMA,
    Grade,
    grade_of,
    json_values,
)
from linkern.testing.report.report import Report
from linkern.testing.runner.results import CheckResult
from linkern.testing.spec.contract import Contract

SCHEMA = json.loads(
    resources.files("linkern.testing.report").joinpath("grade.schema.json").read_text()
)
PLAN = Plan("k.py:f", "linear_attention", checks=("causality", "value_on_reals"))


def zeros(query, key, value):
    return np.zeros_like(value)


def zeros_with_state(query, key, value, log_decay, beta, initial_state=None):
    shape = (*value.shape[:2], key.shape[-1], value.shape[-1])
    return np.zeros_like(value), np.zeros(shape, np.float32)


def result(name, verdict, **more):
    return CheckResult(name, "a law", verdict, **more)


def report_on(function, op, **options):
    plan = Plan("zeros", op, function=function, seconds=1000.0, **options)
    report = report_of(plan)
    for _, so_far in reports(plan):
        report = so_far
    return report


@pytest.mark.parametrize(
    ("function", "op"),
    [(zeros, "linear_attention"), (zeros_with_state, "gated_delta_rule")],
)
def test_zeros_keep_the_laws_that_relate_outputs_and_no_other(function, op):
    # Zeros keep what is promised here as well.
    promises = Contract.from_mapping({"batch_invariant": "true"})
    options = {"dtypes": ("float32",), "shrink": False, "diagnose": False}
    report = report_on(function, op, contract=promises, **options)
    kept = {check.name for check in report.checks if check.verdict == "passed"}
    relations = {name for name, check in CHECKS.items() if check.relation}
    assert kept <= relations
    broken = {check.name for check in report.failures}
    assert broken
    assert not broken & relations
    grade = grade_of(report)
    assert grade.score == 0.0
    assert 0 < grade.kept < grade.judged == grade.laws


@pytest.mark.parametrize(
    ("verdicts", "verdict", "score"),
    [
        (("passed", "passed"), "passed", 1.0),
        (("failed", "passed"), "failed", 0.5),  # causality: a relation
        (("passed", "failed"), "failed", 0.0),
        (("passed",), "inconclusive", 0.0),  # the exact law was not reached
        (("passed", "inconclusive"), "inconclusive", 1.0),
        (("passed", "error"), "inconclusive", 0.0),
        (("not_applicable", "passed"), "passed", 1.0),
        ((), "inconclusive", 0.0),
    ],
)
def test_what_is_not_judged_is_not_kept(verdicts, verdict, score):
    checks = tuple(map(result, PLAN.checks, verdicts))
    plan = Plan(PLAN.target, PLAN.op, checks=PLAN.checks, seconds=1.0)
    grade = grade_of(Report(plan, checks))
    assert (grade.verdict, grade.score) == (verdict, score)


def test_the_worst_error_is_that_of_its_kind():
    ratios = {
        "value_on_reals": 0.5,
        "dimensions": 0.75,
        "state_value": 0.25,
        "packed_states": 0.375,
        "gradient_value": 0.125,
        "packed_gradients": 0.0625,
        "finite_differences": 2.0,  # a relation: its bound is another one
    }
    checks = (result(name, "passed", worst_ratio=x) for name, x in ratios.items())
    plan = Plan("k.py:f", "gla", checks=tuple(ratios))
    worst = grade_of(Report(plan, tuple(checks))).worst_error
    assert worst == {"output": 0.75, "state": 0.375, "gradient": 0.125}


def test_the_schema_names_what_a_grade_says_and_nothing_else():
    said = grade_of(report_on(zeros, "linear_attention", dtypes=("float32",))).to_dict()
    for part, values in (
        (SCHEMA, said),
        (SCHEMA["$defs"]["cause"], said["cause"]),
        (SCHEMA["$defs"]["counterexample"], said["counterexample"]),
        (SCHEMA["$defs"]["round"], said["rounds"][0]),
    ):
        assert list(values) == list(part["properties"]) == part["required"]
    assert said["schema"] == SCHEMA["properties"]["schema"]["const"] == GRADE_SCHEMA
    json.dumps(said, allow_nan=False)


@pytest.mark.parametrize("grade", [Grade("k.py:f", "gla", "refused"), None])
def test_grades_keep_the_schema(grade):
    jsonschema = pytest.importorskip("jsonschema")
    if grade is None:
        grade = grade_of(report_on(zeros, "linear_attention", dtypes=("float32",)))
    jsonschema.validate(grade.to_dict(), SCHEMA)
    for wrong in ({"verdict": "fine"}, {"score": 2.0}, {"schema": 2}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(grade.to_dict() | wrong, SCHEMA)


def test_numbers_that_json_lacks_are_strings():
    values = json_values({"a": [float("inf"), (float("nan"), 1.5)]})
    assert values == {"a": ["inf", ["nan", 1.5]]}


def test_a_grade_has_the_fields_of_its_schema():
    names = {field.name for field in fields(Grade)} | {"schema", "linkern", "rules"}
    assert names == set(SCHEMA["properties"])
    assert "linear_attention" in OPERATORS
