"""Results of generating: tables, JSON, figures and the command."""

import json
from dataclasses import replace
from importlib import import_module

import pytest
from click.testing import CliRunner
from rich.console import Console

from linkern import cli
from linkern.bench.figures import draw_generation
from linkern.bench.generation.published_figures import TABLES
from linkern.bench.generation.results import (
    crossovers,
    exponents,
    to_json,
    write_json,
)
from linkern.bench.generation.tables import generation_notes, published_table
from linkern.bench.machine import this_machine
from linkern.bench.records import Row, Run
from linkern.bench.suites import Suite
from linkern.bench.tables import task_table
from linkern.bench.tasks import Task
from linkern.bench.timing import Spread

TASK, AGAIN = (
    Task(name, "setting: details", "generate", (100, 800), baseline="linear")
    for name in ("setting", "again")
)
SUITE = Suite("generation", "command", 1, (TASK, AGAIN))


def measured(name, length, seconds, spans=None, each=None, **options):
    """Return a row; without spans, it took the same for each half."""
    half = length // 2
    return Row(
        task=options.pop("task", "setting"),
        peer=name,
        summary=f"{name}, summary",
        length=length,
        seconds=Spread(seconds, 0.5 * seconds, 2 * seconds, 3),
        spans=spans or ((0, half), (half, length)),
        span_seconds=each or (seconds / 2, seconds / 2),
        held_bytes=1000,
        extra_bytes=2000,
        **options,
    )


def run_of(*rows):
    return Run(SUITE, this_machine(), "", 0, rows)


@pytest.fixture(scope="module")
def result():
    spans = ((0, 100), (100, 200), (200, 400), (400, 800))
    ends, by = ((0, 1), (799, 800)), "resident memory"
    return run_of(
        measured("linear", 100, 1.0),
        measured("cache", 100, 3.0),
        measured("linear", 800, 8.0, spans, (1.0, 1.0, 2.0, 4.0)),
        measured("cache", 800, 11.6, spans, (0.5, 0.5, 2.6, 8.0)),
        measured("again", 800, 900.0, ends, (0.1, 2.0), extra_by=by),
    )


def test_ratios_are_to_the_baseline_at_the_same_length(result):
    ratios = [result.ratio(row).median for row in result.rows]
    assert ratios == [1, 3, 1, 11.6 / 8, 900 / 8]
    assert result.ratio(result.rows[1]) == Spread(3, 0.75, 12, 3)
    alone = run_of(result.rows[1])
    assert alone.ratio(alone.rows[0]) is None


def test_exponents_are_of_the_longest_run_and_of_one_token(result):
    powers = exponents(result, TASK)
    assert powers["linear"] == pytest.approx(0, abs=1e-12)
    assert powers["cache"] > 0.4
    assert powers["again"] is None  # two points are no fit


def test_the_crossover_is_between_sums(result):
    # 1 s behind after 200 tokens; 0.4 s behind after 400; then 4 s more in 400 tokens.
    assert crossovers(result, TASK) == {"cache": 440}


def test_the_table_and_its_notes_show_all_numbers(result):
    console = Console(width=200, record=True, file=None)
    with console.capture() as captured:
        console.print(task_table(result, TASK))
    text = captured.get()
    for word in ("cache, summary", "900 (450-1800) *", "0.889", "~2 KiB", "1 KiB"):
        assert word in text
    notes = "\n".join(generation_notes(result, TASK))
    for word in ("from 2 sampled prefixes", "linear takes less than cache from 440 on"):
        assert word in notes


def test_published_figures_are_labelled_as_quoted():
    console = Console(width=200)
    with console.capture() as captured:
        console.print(published_table())
    text = captured.get()
    for word in ("quoted from Katharopoulos et al. 2020", "4462x", "317x", "0.45"):
        assert word in text


def test_the_tables_of_the_paper_agree_with_its_ratios():
    """The paper prints both; ratios here are computed from its throughputs."""
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
        ratio = row.images_per_second / softmax[0].images_per_second
        assert ratio == pytest.approx(of_mnist, rel=0.02)
        ratio = other.images_per_second / softmax[1].images_per_second
        assert ratio == pytest.approx(of_cifar, rel=0.02)


def twice(result):
    """Return the same rows in two settings."""
    again = (replace(row, task="again") for row in result.rows)
    return replace(result, rows=(*result.rows, *again))


def test_json_holds_everything(result, tmp_path):
    both, path = twice(result), tmp_path / "result.json"
    write_json(both, path)
    written = json.loads(path.read_text())
    assert written == json.loads(json.dumps(to_json(both)))
    assert set(written) == {"schema", "machine", "settings", "quoted"}
    first, second = written["settings"]
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
    assert [row["sampled"] for row in first["measured"]] == [False] * 4 + [True]
    assert row["tokens_per_second"] == 800 / 11.6
    assert row["seconds"] == {"median": 11.6, "low": 5.8, "high": 23.2, "rounds": 3}
    assert {"processor", "threads", "libraries", "blas"} <= set(written["machine"])


@pytest.mark.usefixtures("matplotlib")
def test_matplotlib_writes_pictures(result, tmp_path):
    draw_generation(twice(result), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="not supported"):
        draw_generation(result, tmp_path / "picture.docx")


def run(*words):
    return CliRunner().invoke(cli.main, ["bench", "generation", *words])


@pytest.mark.slow
def test_the_command_measures(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "linkern.bench.generation.one_layer.find_spec", lambda name: None
    )
    path = tmp_path / "result.json"
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
    (alone,) = json.loads(path.read_text())["settings"]
    rows = [(row["length"], row["contestant"]) for row in alone["measured"]]
    names = ("linear", "numpy-recompute")
    assert rows == [(length, name) for length in (8, 20) for name in names]
    assert all(row["seconds"]["median"] > 0 for row in alone["measured"])


@pytest.mark.slow
def test_the_command_measures_whole_models(tmp_path):
    path = tmp_path / "result.json"
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


def test_an_interrupted_run_keeps_what_was_measured(tmp_path, monkeypatch, result):
    def parts(suite, *_):
        task = suite.tasks[0].name
        yield tuple(replace(row, task=task) for row in result.rows)
        raise KeyboardInterrupt

    # As an attribute of its package, the name is the command's.
    module = import_module("linkern.cli.benches.generation")
    monkeypatch.setattr(module, "_parts", parts)
    path = tmp_path / "result.json"
    ended = run("--json", str(path))
    assert ended.exit_code == 130
    assert len(json.loads(path.read_text())["settings"]) == 1
    assert "held: memory kept" in ended.output
    assert "interrupted: all lengths" in ended.output


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
    monkeypatch.setattr("linkern.bench.figures.find_spec", lambda name: None)
    result = run("--plot", "picture.png")
    assert result.exit_code == 2
    assert "pip install linkern[plot]" in result.output
