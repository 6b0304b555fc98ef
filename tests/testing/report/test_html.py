"""The page: nothing escapes it, nothing is missing from it, nothing breaks it."""

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from linkern.testing.report.html import environment, page, write_html
from linkern.testing.report.html.charts import Edges, curve, heat_map, histogram
from linkern.testing.report.html.influence import influence
from linkern.testing.report.report import Report
from linkern.testing.runner.plan import Plan
from linkern.testing.spec.contract import Contract

VOID = {"link", "meta"}
GEOMETRY = {"x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "points"} | {
    "width",
    "height",
}
NUMBERS = (0.0, 1e-320, 1e-9, 0.5, 1.0, math.nextafter(1, 2), 7e5, 1e308)


class Page(HTMLParser):
    """What a parser makes of a page; it refuses what is not well-formed."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.attributes, self.texts = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def values(self, name):
        return [value for _, key, value in self.attributes if key == name]

    @property
    def text(self):
        hidden = ("style", "script")
        return "".join(text for tag, text in self.texts if tag not in hidden)


def render(chart):
    """Return a chart as it stands on the page."""
    return environment().get_template("figure.html").module.figure(chart)


def test_templates_escape_every_text():
    hostile = '<b a="1">&\x00\x1b\ud800\u202e\ufffe'
    template = environment().from_string('<i title="{{ text }}">{{ text }}</i>')
    assert template.render(text=hostile) == (
        '<i title="{0}">{0}</i>'.format(
            "&lt;b a=&#34;1&#34;&gt;&amp;␀␛\ufffd\ufffd\ufffd"
        )
    )
    values = {"</script>": ["<!--", "&amp;", "\u2028\x7f", None, 1.5], "a": "\ud800"}
    block = environment().from_string("{{ values|tojson }}").render(values=values)
    assert not set("<>&\u2028\ud800") & set(block)
    assert list(json.loads(block).items()) == list(values.items())


def test_templates_never_declare_a_text_safe():
    folder = resources.files("linkern.testing.report") / "html"
    for name in ("page.html", "figure.html"):
        text = folder.joinpath(name).read_text(encoding="utf-8")
        assert not re.search(r"\|\s*safe|autoescape", text)


def test_what_the_target_says_stays_text(plan, report):
    found = Page(page(report))
    assert found.tags.count("script") == 1
    assert "img" not in found.tags
    assert ("script", "type", "application/json") in found.attributes
    assert not [name for _, name, _ in found.attributes if name.startswith("on")]
    assert "<script>alert(" in found.text
    assert not set("\x1b\u202e") & set(page(report))


def test_the_page_asks_for_nothing(plan, report):
    text = page(report)
    found = Page(text)
    policy = found.values("content")[0]
    for rule in ("default-src 'none'", "style-src 'unsafe-inline'", "img-src data:"):
        assert rule in policy
    assert set(found.values("href")) == {"data:,"} | {
        f"#{name}" for name in found.values("id") if re.fullmatch(r"check-\d+", name)
    }
    assert not found.values("src")
    assert "url(" not in text
    assert "@import" not in text


def test_ids_are_unique_and_references_resolve(plan, report):
    found = Page(page(report))
    ids = found.values("id")
    assert len(ids) == len(set(ids))
    references = found.values("aria-labelledby") + found.values("aria-describedby")
    assert references
    assert set(references) <= set(ids)
    assert {value[1:] for value in found.values("href") if value[0] == "#"} <= set(ids)


def test_everything_found_is_said(plan, report):
    found = Page(page(report))
    for check in report.checks[:-1]:
        assert check.name in found.text
        assert check.statement in found.text
        assert check.verdict.replace("_", " ") in found.text
        message = check.message.partition("\x1b")[0].replace("`", "")
        assert message in found.text.replace("`", "")
    for words in (
        "✗ failed",
        "Likely cause: agrees with eps=1e-6",
        "If that is meant: --declare eps=1e-6",
        "rows from 0 on",
        "an epsilon in the quotient",
        "gradients: it has none",
        "output, measured / exact",
        "1 cell lost, 1 cell too small",
        " 24 + !│- >",
        "1 not applicable, 1 covered, 1 skipped",
        "return one, and 1 more law is judged",
        "eps=1e-06",
        "state_dtype=bfloat16",
        "smallest input",
        "input it died on",
        "[0, 0, 1, 0] of (B, H, T, V)",
        "4.65e-06",
        "--check causality",
        "--seed 0",
        "score_dtype is float32, but 11 bits survive",
        "score1124float32",  # cells of one row
        "odd3",
        "numpy 2.1",
        "odd ` backtick\nsecond line",
        "chunk edges, every 64 (measured)",
    ):
        assert words in found.text, words


def test_the_report_can_be_read_out_of_the_page(report):
    found = Page(page(report))
    (block,) = (text for tag, text in found.texts if tag == "script")
    expected = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert json.loads(block) == expected


def test_every_picture_is_xml_with_a_title_and_words(plan, report):
    figures = re.findall("<figure>.*?</figure>", page(report), re.DOTALL)
    assert len(figures) == 8 + 3  # the map: measured, exact and their ratio
    for figure in figures:
        svg = ET.fromstring(figure).find("svg")
        title, words = list(svg)[:2]
        assert (title.tag, words.tag) == ("title", "desc")
        assert title.text
        assert words.text
        assert svg.get("role") == "img"
        assert svg.get("aria-labelledby") == title.get("id")
        assert svg.get("aria-describedby") == words.get("id")


def test_tables_name_their_rows_and_columns(plan, report):
    found = Page(page(report))
    assert found.tags.count("th") == len(found.values("scope"))
    for landmark in ("header", "main", "h1", "h2"):
        assert landmark in found.tags
    assert ("html", "lang", "en") in found.attributes


@pytest.mark.parametrize("known", [NUMBERS, (*NUMBERS, math.inf, math.nan), (0.0,)])
def test_no_number_breaks_a_picture(known):
    for figure in (
        heat_map("a", [known, known]),
        heat_map("a", [[x] for x in known] * 99),
        curve("b", known, Edges(64)),
        curve("b", known * 1000, Edges(3, "declared")),
        histogram("c", known),
    ):
        text = render(figure)
        assert ET.fromstring(text) is not None
        places = re.findall(
            r' (?:x|y|x1|x2|y1|y2|cx|cy|width|height|points)="([^"]*)"', text
        )
        for place in places:
            assert re.fullmatch(r"[-\d.%, ]+", place), place


def test_a_map_has_a_shape_for_each_class_and_rules_at_chunk_edges(report):
    measured, exact, ratio = influence("a", report.diagnosis.picture)
    for chart in (measured, exact, ratio):
        (rules,) = drawn(chart, {"edge"})
        assert rules.get("d") == "M0 2h4M2 0v4"
        assert "edges of chunks of 16" in render(chart)
    (lost,) = drawn(ratio, {"entry", "lost"})
    assert lost.get("d") == "M0 2h1v1h-1zM1 3h1v1h-1z"
    (right,) = drawn(ratio, {"entry", "right"})
    assert right.get("d").count("M") == 3
    # Six wrong cells have a stroke, so that they need no colour.
    (strokes,) = drawn(ratio, {"mark"})
    assert strokes.get("d").count("M") == 6
    assert not drawn(exact, {"mark"})
    assert "largest exact one is 1." in render(measured)


def drawn(figure, class_):
    nodes = ET.fromstring(render(figure)).iter()
    return [n for n in nodes if class_ <= set((n.get("class") or "").split())]


def test_a_heat_map_marks_what_is_beyond_the_bound_without_colour():
    small = heat_map("a", [[0.0, 1.0, 1.01], [math.inf, math.nan, 0.2]])
    texts = [node.text for node in drawn(small, {"number"})]
    assert sorted(texts) == sorted(["0", "1", "1.01", "∞", "NaN", "0.2"])
    legend = 3
    assert len(drawn(small, {"cell", "outside"})) == 3 + legend
    assert len(drawn(small, {"mark"})) == legend
    assert "6 entries of this head, 3 beyond the bound" in render(small)
    assert "is NaN, at t\xa0=\xa01, v\xa0=\xa01." in render(small)
    large = heat_map("a", [[0.0, 2.0]] * 15)
    assert not drawn(large, {"number"})
    assert len(drawn(large, {"mark"})) == 15 + legend


def test_a_large_heat_map_keeps_its_worst_entries():
    errors = [[0.0] * 100 for _ in range(1000)]
    errors[777][55] = 2.0
    figure = heat_map("a", errors)
    assert len(drawn(figure, {"cell"})) <= 64 * 32 + 7
    assert len(drawn(figure, {"cell", "outside"})) == 1 + 3
    assert "at t\xa0=\xa0777, v\xa0=\xa055" in render(figure)
    assert "the largest of 16 by 4 entries" in render(figure)


def test_a_curve_draws_its_edges_and_the_bound():
    spikes = [5.0 if t in (64, 128) else 0.1 for t in range(150)]
    figure = curve("a", spikes, Edges(64, "declared"))
    edges = drawn(figure, {"edge"})
    assert [edge.get("x1") for edge in edges] == ["42.6667%", "85.3333%"]
    assert len(drawn(figure, {"bound"})) == 1
    text = render(figure)
    assert "Dashed lines: chunk edges, every 64 (declared)." in text
    assert "beyond the bound at 2 positions, first at t\xa0=\xa064" in text
    guessed = render(curve("a", spikes, Edges(64)))
    assert "Dashed lines: multiples of 64." in guessed
    assert "Dashed" not in render(curve("a", spikes[:64], Edges(64)))


def test_a_long_curve_keeps_its_worst_position():
    ratios = [0.5] * 100_000
    ratios[70_001] = math.inf
    text = render(curve("a", ratios, Edges(16, "measured")))
    assert "is ∞, at t\xa0=\xa070001" in text
    assert "one in 196 is drawn" in text
    (points,) = re.findall(r'points="([^"]*)"', text)
    places = [float(point.split(",")[1]) for point in points.split()]
    assert len(places) <= 512
    assert places.count(0.0) == 1


def test_a_histogram_counts_every_comparison_once():
    just_beyond = math.nextafter(1, 2)
    ratios = (0.0, 0.0, 1e-20, 0.05, 1.0, just_beyond, 1e300, math.inf, math.nan)
    figure = histogram("a", ratios)
    counts = {"bar": 0, "bar outside": 0}
    for bar in drawn(figure, {"bar"}):
        counts[bar.get("class")] += int(bar[0].text.split()[0])
    assert counts == {"bar": 5, "bar outside": 4}
    assert "9 comparisons: 2 exact, 3 within the bound, 4 beyond it." in render(figure)


def test_lines_are_guessed_where_no_chunk_size_is_known(plan, report):
    alone = replace(report, fingerprint=None)
    assert "multiples of 64" in page(alone)
    declared = replace(plan, contract=Contract(chunk_size=32))
    assert "chunk edges, every 32 (declared)" in page(replace(alone, plan=declared))


def test_a_run_without_checks_has_a_page():
    plan = Plan("module:kernel", "linear_attention")
    text = Page(page(Report(plan))).text
    assert "? inconclusive" in text
    assert "No check was run." in text
    assert "nothing: the strictest contract" in text


def test_a_run_cut_short_is_no_pass(plan, report):
    cut = replace(report, checks=report.checks[:2], complete=False)
    text = Page(page(cut)).text
    assert "? passed so far" in text
    assert "This run did not come to its end. Not run:" in text
    missing = [check.name for check in plan.chosen()]
    assert missing[-1] in text
    failed = Page(page(replace(report, complete=False))).text
    assert "✗ failed" in failed
    assert "This run did not come to its end." in failed
    assert "did not come to its end" not in page(report)


def test_the_file_appears_whole_or_not_at_all(plan, report, tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    write_html(report, path)
    assert path.read_text(encoding="utf-8") == page(report)
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]

    def power_cut(draft, target):
        raise OSError

    monkeypatch.setattr(Path, "replace", power_cut)
    with pytest.raises(OSError):  # noqa: PT011 -- it has no message
        write_html(replace(report, checks=()), path)
    assert path.read_text(encoding="utf-8") == page(report)
