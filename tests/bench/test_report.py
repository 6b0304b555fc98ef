"""Tables, JSON, pictures and the command."""

import json

import pytest
from click.testing import CliRunner
from rich.console import Console

from linkern import cli
from linkern.bench.generation import Measured
from linkern.bench.machine import this_machine
from linkern.bench.paper import TABLES
from linkern.bench.plotting import plot
from linkern.bench.report import Report, quoted_table, to_json, write_json
from linkern.bench.timing import Spread


def measured(name, length, seconds, spans=None, each=None, **options):
    """Return a row; without spans, it took the same for each half."""
    half = length // 2
    return Measured(
        contestant=name,
        summary=f"{name}, summary",
        length=length,
        seconds=Spread(seconds, 0.5 * seconds, 2 * seconds, 3),
        spans=spans or ((0, half), (half, length)),
        span_seconds=each or (seconds / 2, seconds / 2),
        sampled=options.pop("sampled", False),
        held_bytes=1000,
        peak_bytes=options.pop("peak_bytes", 2000),
        peak_by=options.pop("peak_by", "tracemalloc"),
    )


@pytest.fixture(scope="module")
def report():
    spans = ((0, 100), (100, 200), (200, 400), (400, 800))
    return Report(
        "setting: details",
        "linear",
        (
            measured("linear", 100, 1.0),
            measured("cache", 100, 3.0),
            measured("linear", 800, 8.0, spans, (1.0, 1.0, 2.0, 4.0)),
            measured("cache", 800, 11.6, spans, (0.5, 0.5, 2.6, 8.0)),
            measured("again", 800, 900.0, sampled=True, peak_by="resident memory"),
        ),
    )


def test_ratios_are_to_the_baseline_at_the_same_length(report):
    ratios = [report.ratio(row).median for row in report.measured]
    assert ratios == [1, 3, 1, 11.6 / 8, 900 / 8]
    assert report.ratio(report.measured[1]) == Spread(3, 0.75, 12, 3)
    alone = Report("setting", "linear", report.measured[1:2])
    assert alone.ratio(alone.measured[0]) is None


def test_exponents_are_of_the_longest_run_and_of_one_token(report):
    exponents = report.exponents()
    assert exponents["linear"] == pytest.approx(0, abs=1e-12)
    assert exponents["cache"] > 0.4
    assert exponents["again"] is None  # two points are no fit


def test_the_crossover_is_between_sums(report):
    # 1 s behind after 200 tokens; 0.4 s behind after 400; then 4 s more in 400 tokens.
    assert report.crossovers() == {"cache": 440}


def test_the_table_says_all(report):
    console = Console(width=200, record=True, file=None)
    with console.capture() as captured:
        console.print(report.table())
    text = captured.get()
    for word in ("cache, summary", "900 (450-1800) *", "0.889", "~2 KiB", "1 KiB"):
        assert word in text
    notes = "\n".join(report.notes())
    for word in ("from 2 sampled prefixes", "linear takes less than cache from 440 on"):
        assert word in notes


def test_what_is_quoted_is_labelled_so():
    console = Console(width=200)
    with console.capture() as captured:
        console.print(quoted_table())
    text = captured.get()
    for word in ("quoted from Katharopoulos et al. 2020", "4462x", "317x", "0.45"):
        assert word in text


def test_the_tables_of_the_paper_agree_with_its_ratios():
    """The paper prints both; ours are computed from its throughputs."""
    mnist, cifar = TABLES
    printed = {
        "softmax": (1, 1),
        "stateful softmax": (16.8, 80),
        "LSH-1": (1.5, 3.75),
        "LSH-4": (0.6, 1.25),
        "linear": (317, 4462),
    }
    for row, other in zip(mnist.rows, cifar.rows, strict=True):
        assert row.method == other.method
        of_mnist, of_cifar = printed[row.method]
        softmax = (mnist.rows[0], cifar.rows[0])
        found = row.images_per_second / softmax[0].images_per_second
        assert found == pytest.approx(of_mnist, rel=0.02)
        found = other.images_per_second / softmax[1].images_per_second
        assert found == pytest.approx(of_cifar, rel=0.02)


def test_json_holds_everything(report, tmp_path):
    machine = this_machine()
    write_json(machine, [report, report], tmp_path / "report.json")
    found = json.loads((tmp_path / "report.json").read_text())
    assert found == json.loads(json.dumps(to_json(machine, [report, report])))
    assert set(found) == {"schema", "machine", "settings", "quoted"}
    first, second = found["settings"]
    assert first == second
    assert set(first) == {
        "setting",
        "baseline",
        "measured",
        "exponents",
        "crossovers",
    }
    row = first["measured"][3]
    assert row["ratio_to_baseline"]["median"] == 11.6 / 8
    assert row["seconds"] == {"median": 11.6, "low": 5.8, "high": 23.2, "rounds": 3}
    assert {"processor", "threads", "libraries", "blas"} <= set(found["machine"])


@pytest.mark.usefixtures("matplotlib")
def test_matplotlib_writes_pictures(report, tmp_path):
    plot([report, report], tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="not supported"):
        plot([report], tmp_path / "picture.docx")


def run(*words):
    return CliRunner().invoke(cli.main, ["bench", "generation", *words])


def test_the_command_measures(tmp_path, monkeypatch):
    monkeypatch.setattr("linkern.bench.contestants.find_spec", lambda name: None)
    path = tmp_path / "found.json"
    words = ("--length", "20", "--length", "8", "--quick", "--seed", "3")
    names = ("--contestant", "numpy-recompute")
    result = run(*words, *names, "--json", str(path))
    assert result.exit_code == 0, result.output
    for word in (
        "threads",
        "softmax recomputed, NumPy",
        "sampled",
        "quoted",
        "MNIST",
    ):
        assert word in result.output
    found = json.loads(path.read_text())
    (alone,) = found["settings"]
    rows = [(row["length"], row["contestant"]) for row in alone["measured"]]
    names = ("linear", "numpy-recompute")
    assert rows == [(length, name) for length in (8, 20) for name in names]
    assert all(row["seconds"]["median"] > 0 for row in alone["measured"])


def test_the_command_measures_whole_models(tmp_path):
    path = tmp_path / "found.json"
    words = ("--length", "8", "--length", "20", "--quick", "--depth", "1")
    names = ("--contestant", "model-lsh", "--contestant", "numpy-cache")
    result = run(*words, *names, "--json", str(path))
    assert result.exit_code == 0, result.output
    assert "whole models: NumPy, 1 layers, 8 heads of 32" in result.output
    alone, whole = json.loads(path.read_text())["settings"]
    assert {row["contestant"] for row in alone["measured"]} == {"linear", "numpy-cache"}
    assert whole["baseline"] == "model-linear"
    names = ("model-linear", "model-lsh")
    rows = [(row["length"], row["contestant"]) for row in whole["measured"]]
    assert rows == [(length, name) for length in (8, 20) for name in names]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--length", "0"), "0 is not in the range x>=1"),
        (("--length", "many"), "'many' is not a valid integer"),
        (("--contestant", "lsh"), "--contestant must be one of linear, numpy-cache"),
        (("--json", "/no/such/folder/x.json"), "there is no folder /no/such/folder"),
        (("--seed", "-1"), "-1 is not in the range"),
        (("--depth", "0"), "0 is not in the range x>=1"),
    ],
)
def test_bad_options_exit_with_2(words, sentence):
    result = run(*words)
    assert result.exit_code == 2
    assert sentence in result.output


def test_without_matplotlib_the_extra_is_named_before_anything_runs(monkeypatch):
    monkeypatch.setattr("linkern.bench.plotting.find_spec", lambda name: None)
    result = run("--plot", "picture.png")
    assert result.exit_code == 2
    assert "pip install linkern[plot]" in result.output
