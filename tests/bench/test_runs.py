"""Records of a run: ratios, goals, files, comparisons, tables and figures."""

import json
from dataclasses import replace

import pytest
from rich.console import Console

from linkern.bench import comparison, files, tables
from linkern.bench.cpu import CPU
from linkern.bench.figures import draw_run
from linkern.bench.goals import outcomes
from linkern.bench.machine import this_machine
from linkern.bench.peers import COPY, GEMM, SOFTMAX
from linkern.bench.records import Row, Run
from linkern.bench.scaling import overtaken
from linkern.bench.tasks import OURS
from linkern.bench.timing import Spread

GEMM_SECONDS = 2 * 2048**3 / 100e9  # 100 GFLOP/s
COPY_SECONDS = 2 * 2**27 / 10e9  # 10 GB/s


def spread(seconds, noise=0.1, rounds=5):
    return Spread(seconds, seconds * (1 - noise), seconds * (1 + noise), rounds)


def row(task, length, name, seconds, **more):
    taken = None if seconds is None else spread(seconds)
    return Row(task, length, name, f"summary of {name}", 2, taken, **more)


def limits(task, length, scale=1.0):
    return (
        row(task, length, GEMM, GEMM_SECONDS * scale),
        row(task, length, COPY, COPY_SECONDS * scale),
    )


def run_of(*rows):
    return Run(CPU, this_machine(), "abc", 0, tuple(rows), 2)


def causal(length, ours, scale=1.0, **others):
    named = {name.replace("_", "-"): seconds for name, seconds in others.items()}
    return (
        row("causal", length, OURS, ours, extra_bytes=2**20, error=1e-7),
        *(
            row("causal", length, n, s, extra_bytes=2**23, extra_by="resident memory")
            for n, s in named.items()
        ),
        *limits("causal", length, scale),
    )


@pytest.fixture
def run():
    return run_of(
        *causal(512, 0.002, torch_compile=0.001, torch_sdpa=0.001),
        *causal(1024, 0.004, torch_compile=0.008, torch_sdpa=0.004),
        *causal(4096, 0.016, torch_compile=0.064, torch_sdpa=0.064),
        row("causal", 4096, "ft", None, remark="wrong: off by 0.3", error=0.3),
    )


def test_ratios_fractions_and_floors(run):
    ours = run.row("causal", 4096, OURS)
    theirs = run.row("causal", 4096, "torch-compile")
    assert run.ratio(theirs).median == 4
    work = CPU.task("causal").operations(4096)
    # By definition: operations over time over the peak.
    assert run.fraction(ours).median == pytest.approx(work / 0.016 / 100e9)
    assert run.fraction(run.row("causal", 4096, SOFTMAX)) is None
    assert run.floor(ours) == pytest.approx(4 * 4096 * 8 * 64 * 4 / 10e9 / 0.016)
    assert run.relative(ours).median == pytest.approx(0.016 / GEMM_SECONDS)
    assert run.peak("causal", 512).median == pytest.approx(100e9)
    assert run.exponent("causal", OURS) == pytest.approx(1)
    assert run.fastest("causal", 4096).peer == "torch-compile"
    assert run.fastest("causal", 4096, [SOFTMAX]).peer == SOFTMAX
    assert run.ratio(run.row("causal", 4096, "ft")) is None


def test_the_crossover_is_where_softmax_is_overtaken(run):
    assert run.crossover("causal") == 1024
    assert run.crossover("causal", "nobody") is None


def law_the_crossing_lies_on_straight_lines(crossing):
    # Time ~ T against T^2 / 700: they meet at 700.
    lengths = [100, 500, 1000, 8000]
    square = [x * x / 700 for x in lengths]
    assert crossing(lengths, lengths, square) == 700
    assert crossing(lengths, square, lengths) is None
    assert crossing(lengths[2:], lengths[2:], square[2:]) == 1000


def the_first_measured(lengths, ours, theirs):
    rows = zip(lengths, ours, theirs, strict=True)
    return next((x for x, a, b in rows if a < b), None)


def test_crossings():
    law_the_crossing_lies_on_straight_lines(overtaken)
    assert overtaken([], [], []) is None
    with pytest.raises(AssertionError):
        law_the_crossing_lies_on_straight_lines(the_first_measured)


def verdicts(run):
    return {(x.goal.quantity, x.length, x.peer): x for x in outcomes(run)}


def test_goals_are_met_or_missed_at_what_was_measured(run):
    results = verdicts(run)
    assert results["speed", 512, "torch-compile"].verdict == "missed"
    assert results["speed", 1024, "torch-compile"].verdict == "met"
    assert results["speed", 4096, SOFTMAX].verdict == "missed"  # 4x, 9x wanted
    assert results["speed", 4096, ""].verdict == "not measured"  # ft was wrong
    assert results["extra", 512, ""].verdict == "met"
    assert results["exponent", None, ""].verdict == "met"
    assert {length for _, length, _ in results} == {None, 512, 1024, 4096}


def law_goals_are_met_on_the_right_side(judged):
    """At the threshold it is met, a little beyond it is not."""
    for factor, verdict in ((1.0, "met"), (1.001, "missed")):
        rows = (
            row("decode-1", 512, OURS, 17e-6 * factor, extra_bytes=1),
            *limits("decode-1", 512),
            *causal(4096, 0.001 * factor, ft_kernel=0.0022),
        )
        results = {
            (x.goal.task, x.goal.whom): x.verdict
            for x in judged(run_of(*rows))
            if x.goal.quantity in ("seconds", "speed")
        }
        assert results["decode-1", "the fastest peer"] == verdict
        assert results["causal", "ft-kernel"] == verdict


def always_met(run):
    return [replace(x, value=x.goal.least or x.goal.most) for x in outcomes(run)]


def test_goals_are_met_on_the_right_side():
    law_goals_are_met_on_the_right_side(outcomes)
    with pytest.raises(AssertionError):
        law_goals_are_met_on_the_right_side(always_met)


def test_memory_goals_compare_with_the_least_of_the_others():
    rows = [
        row("gradient", 4096, OURS, 1.0, extra_bytes=10),
        row("gradient", 4096, "torch-compile", 1.0, extra_bytes=29),
        row("gradient", 4096, "torch-loop-64", 1.0, extra_bytes=99),
        row("gradient", 4096, "ft", 1.0, extra_bytes=31),
    ]
    results = verdicts(run_of(*rows))
    assert results["saving", 4096, "torch-compile"].verdict == "missed"
    assert results["saving", 4096, "ft"].verdict == "met"


def test_one_head_is_compared_with_one_thread_of_ours():
    rows = (
        row("one-head", 16384, OURS, 1.0),
        row("one-head", 16384, "linkern-one-thread", 1.5),
        row("one-head", 16384, "torch-compile", 0.5),
    )
    results = verdicts(run_of(*rows))
    assert results["speed", 16384, "linkern-one-thread"].value == 1.5


def test_tensors_are_compared_with_arrays_of_ours():
    rows = (
        row("torch-cpu", 4096, OURS, 1.0),
        row("torch-cpu", 4096, "linkern-tensors", 1.2),
        row("torch-cpu", 4096, "linkern-tensors-chunkwise", 0.5),
        row("torch-cpu", 4096, "torch-compile", 2.0),
    )
    results = verdicts(run_of(*rows))
    assert results["speed", 4096, "linkern-tensors"].verdict == "missed"
    assert results["speed", 4096, "torch-compile"].verdict == "met"


@pytest.mark.parametrize(
    ("task", "ours", "other"),
    [
        ("out-of-core", "dask-stream", "linkern-in-memory"),
        ("out-of-core-gradient", "dask-zarr", OURS),
    ],
)
def test_calls_on_stores_are_compared_with_a_call_in_memory(task, ours, other):
    length = CPU.task(task).lengths[0]
    block = 8 * 65536 * 64 * 4
    for factor, verdict in ((1.0, "met"), (1.001, "missed")):
        rows = (
            row(task, length, ours, 10.0 * factor, extra_bytes=int(8 * block * factor)),
            row(task, length, other, 6.0, extra_bytes=10**12),
        )
        results = verdicts(run_of(*rows))
        assert results["speed", length, other].verdict == verdict
        assert results["blocks", length, ""].verdict == verdict
        assert results["blocks", length, ""].reached() == "8.0"


def test_goals_name_tasks_and_peers_that_exist():
    names = {peer.name for peer in CPU.peers}
    for goal in CPU.goals:
        task = CPU.task(goal.task)
        assert set(goal.lengths) <= set(task.lengths)
        assert set(goal.against) <= names
        assert (goal.least is None) + (goal.most is None) < 2
        assert goal.text()


def test_a_run_is_the_same_after_reading_it_back(run, tmp_path):
    path = tmp_path / "run.json"
    files.write_run(run, path)
    assert files.read_run(path, CPU) == run
    written = json.loads(path.read_text())
    assert written["schema"] == CPU.schema
    assert written["rows"][0]["fraction_of_gemm_peak"]["median"] > 0
    assert written["tasks"]["causal"]["overtakes_softmax_at"] == 1024
    assert {x["verdict"] for x in written["goals"]} == {"met", "missed", "not measured"}


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "3", '{"schema": 1, "settings": []}', "\xff\xfe"]
)
def test_foreign_files_are_refused(tmp_path, text):
    path = tmp_path / "foreign.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=r"foreign\.json"):
        files.read_run(path, CPU)


def law_only_changes_beyond_noise_are_flagged(changes):
    """The machine's own speed divides out; touching ranges are no change."""
    old = run_of(*causal(512, 1.0))
    cases = [
        (run_of(*causal(512, 1.0)), ""),
        (run_of(*causal(512, 1.2)), ""),  # 0.9-1.1 and 1.08-1.32, over GEMM
        (run_of(*causal(512, 2.0)), "slower"),
        (run_of(*causal(512, 0.5)), "faster"),
        (run_of(*causal(512, 2.0, scale=2.0)), ""),  # all of it is slower
        (run_of(*causal(512, 1.0, scale=0.5)), "slower"),
    ]
    for new, verdict in cases:
        assert {x.row.peer: x.verdict for x in changes(old, new)}[OURS] == verdict


def without_the_machine(old, new):
    return [replace(x, relative=None) for x in comparison.changes(old, new)]


def by_medians(old, new):
    results = comparison.changes(old, new)
    exact = [
        Spread(x.relative.median, *[x.relative.median] * 2, 5) for x in results[:1]
    ]
    return [replace(x, relative=y) for x, y in zip(results, exact, strict=False)]


def test_only_changes_beyond_noise_are_flagged():
    law_only_changes_beyond_noise_are_flagged(comparison.changes)


@pytest.mark.parametrize("mutant", [without_the_machine, by_medians])
def test_wrong_comparisons_are_caught(mutant):
    with pytest.raises(AssertionError):
        law_only_changes_beyond_noise_are_flagged(mutant)


def test_too_few_rounds_are_no_range():
    slow = Spread(9.0, 9.0, 9.0, 2)
    row_ = row("causal", 512, OURS, 1.0)
    assert comparison.Change(row_, slow, slow).verdict == ""
    assert comparison.Change(row_, slow, replace(slow, rounds=3)).verdict == "slower"


def test_rows_of_one_run_only_are_not_compared(run):
    assert comparison.changes(run_of(*causal(2048, 1.0)), run) == ()
    compared = {x.row.peer for x in comparison.changes(run, run)}
    assert "ft" not in compared  # not timed


def test_other_machines_are_named(run):
    assert comparison.differences(run, run) == ()
    other = replace(run.machine, processor="another", libraries={"numpy": "1"})
    results = comparison.differences(replace(run, machine=other, threads=9), run)
    assert len(results) == 3
    assert "processor: another then" in results[0]
    assert "threads: 9 then, 2 now" in results[-1]


def shown(*parts):
    console = Console(width=160)
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    return captured.get()


def test_tables_show_all_numbers(run):
    text = shown(tables.task_table(run, CPU.task("causal")), tables.goals_table(run))
    for word in ("16 (14.4-17.6) ms", "100 GFLOP/s", "10 GB/s", "~8.0 MiB", "wrong"):
        assert word in text
    for word in ("met", "missed", "not measured", "4.00x (torch-compile)"):
        assert word in text
    text = "\n".join((*tables.notes(run), *tables.remarks(run)))
    for word in ("p = 1.00 linkern", "takes less than torch-sdpa from 1024"):
        assert word in text
    assert "causal, 4096: ft wrong: off by 0.3" in text


def test_noise_is_marked():
    noisy = run_of(row("causal", 512, OURS, 1.0, foreign=0.5), *limits("causal", 512))
    assert " s !" in shown(tables.task_table(noisy, CPU.task("causal")))
    assert tables.goals_table(run_of()) is None


@pytest.mark.usefixtures("matplotlib")
def test_matplotlib_writes_the_pictures(run, tmp_path):
    draw_run(run, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    alone = run_of(row("decode-1", 512, OURS, 1.0))
    draw_run(alone, tmp_path / "alone.svg")
    with pytest.raises(ValueError, match="not supported"):
        draw_run(run, tmp_path / "picture.docx")
