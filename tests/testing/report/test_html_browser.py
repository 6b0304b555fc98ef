"""The page in a real browser: it renders, it asks for nothing, it fits a phone.

Every look is also taken at a page that is broken on purpose, and must see it.
"""

import re
from dataclasses import replace

import pytest

from linkern.testing.report.html import page
from linkern.testing.report.report import Report
from linkern.testing.runner.plan import Plan
from tests.browsing import opened
from tests.site.links import LOOKS

PHONE, DESK = 360, 1200
# A page with a frame for each page to measure, as wide as its screen, which measures
# what is inside: a browser takes seconds to start, and none to lay out one page more.
FRAME = '<iframe src="%s" style="border:0;width:%dpx;height:20000px"></iframe>'
RULER = """<!doctype html>
%s
<script>
const measured = (frame) => {
  const page = frame.contentDocument;
  const shown = [...page.querySelectorAll("figure > svg")].filter(
    (svg) => svg.checkVisibility());
  const box = (node) => node.getBoundingClientRect();
  const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 &&
    a.top < b.bottom - 1 && b.top < a.bottom - 1;
  const labels = shown.map((svg) => [...svg.querySelectorAll("text")].filter(
    (text) => text.checkVisibility()));
  const root = page.documentElement;
  const style = page.defaultView.getComputedStyle(page.body);
  return {
    wider: root.scrollWidth - root.clientWidth,
    cut: labels.flat().filter((text) =>
      box(text).left < 0 || box(text).right > root.clientWidth)
      .map((text) => text.textContent),
    overlapping: labels.flatMap((texts) => texts.flatMap((one, i) =>
      texts.slice(i + 1).filter((other) => meet(box(one), box(other)))
        .map((other) => one.textContent + " over " + other.textContent))),
    figures: shown.length,
    empty: [...page.querySelectorAll("section, article, figure > svg, table, dd")]
      .filter((node) => node.checkVisibility() && box(node).height < 8).length,
    colours: [style.color, style.backgroundColor],
  };
};
</script>
"""
ALL = "() => [...document.querySelectorAll('iframe')].map(measured)"


@pytest.fixture
def visit(chromium, tmp_path):
    """Open a page, given as text."""

    def open_page(text, *, name="page.html", **screen):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return opened(chromium, tmp_path / name, **screen)

    return open_page


@pytest.fixture
def measure(visit, tmp_path):
    """Lay pages out, each on a screen of some width, and measure them."""

    def on_screens(*pages, colors="light"):
        frames = []
        for number, (text, width) in enumerate(pages):
            name = f"page-{number}.html"
            (tmp_path / name).write_text(text, encoding="utf-8")
            frames.append(FRAME % (name, width))
        ruler = RULER % "\n".join(frames)
        screen = {"width": DESK, "height": 20_000, "colors": colors}
        with visit(ruler, name="ruler.html", **screen) as seen:
            return seen.page.evaluate(ALL)

    return on_screens


def without_policy(text):
    return re.sub(r'<meta http-equiv="Content-Security-Policy".*?>', "", text)


def with_inside(text, extra):
    assert text.count("</main>") == 1
    return text.replace("</main>", f"{extra}</main>")


INTRUDERS = (
    "<img src='http://leak.invalid/x.png'>"
    "<link rel=stylesheet href='http://leak.invalid/x.css'>"
    "<script>document.title = 'taken over'; fetch('http://leak.invalid/x')</script>"
)


def test_it_renders_without_a_word_or_a_request(visit, plan, report):
    with visit(page(report)) as seen:
        assert seen.console == []
        assert seen.requests == []
        assert seen.title.startswith("✗ failed: kernels.py:")
        assert seen.page.locator("figure").count() == 11
        assert seen.page.locator("script").count() == 1


def test_no_link_is_dead_and_no_formula_is_raw(report, tmp_path):
    (tmp_path / "page.html").write_text(page(report), encoding="utf-8")
    assert [look(tmp_path) for look in LOOKS] == [[], [], []]


def test_intruders_would_be_seen(visit, plan, report):
    with visit(without_policy(with_inside(page(report), INTRUDERS))) as seen:
        assert seen.title == "taken over"
        assert "http://leak.invalid/x.png" in seen.requests
        assert any("fetch" in line for line in seen.console)


def test_the_policy_stops_intruders(visit, plan, report):
    with visit(with_inside(page(report), INTRUDERS)) as seen:
        assert seen.title.startswith("✗ failed: kernels.py:")
        assert seen.requests == []
        assert len(seen.console) == 3
        assert all("Content Security Policy" in line for line in seen.console)


def test_it_fits_the_screen(measure, plan, report):
    text = page(report)
    for found in measure(*((text, width) for width in (320, PHONE, 600, DESK))):
        assert found["wider"] == 0
        assert found["cut"] == []
        assert found["overlapping"] == []
        assert found["empty"] == 0
        assert found["figures"] == 11


def test_what_does_not_fit_would_be_seen(measure, plan, report):
    text = page(report)
    broken = (
        with_inside(text, "<div style='width:600px'>x</div>"),
        re.sub('class="([^"]*)roomy"', r'class="\1"', text),
        text.replace("</desc>", "</desc><text x='120%'>far</text>", 1),
        with_inside(text, "<section></section>"),
    )
    wide, crowded, far, hollow = measure(*((text, PHONE) for text in broken))
    assert wide["wider"] > 200
    assert crowded["overlapping"]
    assert far["cut"] == ["far"]
    assert hollow["empty"] == 1


def test_it_is_dark_where_that_is_preferred(measure, plan, report):
    def brightness(colour):
        return sum(int(part) for part in re.findall(r"\d+", colour)[:3])

    text = page(report), DESK
    light, dark = (
        [brightness(colour) for colour in measure(text, colors=colors)[0]["colours"]]
        for colors in ("light", "dark")
    )
    assert light[1] - light[0] > 500
    assert dark[0] - dark[1] > 500


def test_a_page_without_checks_renders(visit, measure, plan, report):
    nothing = Plan("module:kernel", "linear_attention")
    texts = (
        page(Report(nothing)),
        page(replace(report, complete=False, checks=())),
    )
    for text in texts:
        with visit(text) as seen:
            assert (seen.console, seen.requests) == ([], [])
    for found in measure(*((text, PHONE) for text in texts)):
        assert (found["wider"], found["empty"]) == (0, 0)
