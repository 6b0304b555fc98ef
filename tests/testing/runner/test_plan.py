"""A seed that nobody passes is drawn anew, and named wherever a run is repeated."""

import json
import secrets

from linkern.testing import Plan, verify
from linkern.testing.kernels.correct import quadratic
from linkern.testing.runner import plan as plans

BITS = 64


def draw_seeds(monkeypatch):
    monkeypatch.setattr(plans, "randbits", secrets.randbits)


def test_a_plan_without_a_seed_has_one_of_its_own(monkeypatch):
    draw_seeds(monkeypatch)
    seeds = {Plan("kernels:f", "gla").seed for _ in range(20)}
    assert len(seeds) == 20
    assert max(seeds).bit_length() > BITS - 10
    assert Plan("kernels:f", "gla", seed=3).seed == 3


def test_the_report_names_the_seed_that_was_drawn(monkeypatch, tmp_path):
    draw_seeds(monkeypatch)
    checks, path = ["shape_and_dtype"], tmp_path / "report.json"
    report = verify(quadratic, op="linear_attention", profile="smoke", checks=checks)
    seed = report.plan.seed
    report.to_json(path)
    assert json.loads(path.read_text())["environment"]["seed"] == seed
    assert f"seed {seed}" in str(report)
    assert f"--seed {seed}" in report.checks[0].again
    assert str(seed) in report._repr_html_()
    again = verify(
        quadratic, op="linear_attention", profile="smoke", checks=checks, seed=seed
    )
    assert again.checks[0].ratios == report.checks[0].ratios
