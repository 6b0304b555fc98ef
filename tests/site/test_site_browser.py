"""The site in a real browser, at desk and phone width.

One page loads all others into a frame, one after the other, and measures each: a
browser takes seconds to start, and a tenth of one to lay out a page.
"""

import shutil

import pytest

from tests.browsing import opened

PHONE, DESK = 400, 1400
DRIVER = """<!doctype html><body style="margin:0">
<iframe style="border:0;height:3000px"></iframe>
<script>
const frame = document.querySelector("iframe");
const UNSEEN = "pre, code, script, style, noscript, mjx-container";
const RAW = /\\$\\$|\\\\(?:[a-zA-Z]{2,}|[()[\\]])/;
// What MathJax does not know it sets in red.
const REFUSED = "[data-mml-node=merror], [data-mml-node=mtext][fill=red]";
const load = (url) => new Promise((done) => {
  frame.onload = done;
  frame.src = url;
});
const texts = (page) => {
  const walk = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT), raw = [];
  while (walk.nextNode()) {
    const node = walk.currentNode;
    if (RAW.test(node.data) && !node.parentElement.closest(UNSEEN))
      raw.push(node.data.trim());
  }
  return raw;
};
// A box that scrolls shows what is wider than it; one that hides it, cuts it off.
const cut = (node, page) => {
  const inside = node.getBoundingClientRect();
  for (let box = node.parentElement; box !== page.body; box = box.parentElement) {
    const style = page.defaultView.getComputedStyle(box);
    if (["auto", "scroll"].includes(style.overflowX)) return false;
    if (style.overflowX !== "visible" &&
        inside.right > box.getBoundingClientRect().right + 1) return true;
  }
  return false;
};
const measure = async (url, width) => {
  frame.style.width = width + "px";
  await load(url);
  const view = frame.contentWindow, page = view.document;
  if (view.MathJax && view.MathJax.startup) await view.MathJax.startup.promise;
  const root = page.documentElement;
  const formulas = [...page.querySelectorAll(".math")];
  return {
    raw: texts(page),
    formulas: formulas.length,
    bare: formulas.filter((one) => !one.querySelector("mjx-container svg")).length,
    refused: page.querySelectorAll(REFUSED).length,
    cut: [...page.querySelectorAll("mjx-container, table")].filter(
      (one) => cut(one, page)).length,
    wider: root.scrollWidth - root.clientWidth,
  };
};
</script>"""
ALL = """async ([pages, widths]) => {
  const measured = {};
  for (const width of widths) for (const url of pages)
    measured[width + " " + url] = await measure(url, width);
  return measured;
}"""
GOOD = {"raw": [], "bare": 0, "refused": 0, "cut": 0, "wider": 0}
MATH = '<script defer src="tex-svg.js"></script>'


@pytest.fixture
def measure(chromium):
    """Open all pages of a folder at some widths."""

    def all_pages(folder, *widths):
        names = [x.relative_to(folder).as_posix() for x in folder.rglob("*.html")]
        driver = folder / "driver.html"
        driver.write_text(DRIVER, encoding="utf-8")
        with opened(chromium, driver) as seen:
            measured = seen.page.evaluate(ALL, [sorted(names), list(widths)])
            asked = [url for url in seen.requests if not url.startswith("file:")]
            return measured, seen.console, asked

    return all_pages


def test_the_site_renders_at_desk_and_phone_width(site, measure, tmp_path):
    folder = shutil.copytree(site, tmp_path / "site")
    measured, console, requests = measure(folder, PHONE, DESK)
    assert console == []
    assert requests == []
    assert len(measured) > 150
    assert sum(page.pop("formulas") for page in measured.values()) > 200
    assert {name: x for name, x in measured.items() if x != GOOD} == {}


def test_what_is_wrong_would_be_seen(site, measure, tmp_path):
    folder = tmp_path / "site"
    folder.mkdir()
    shutil.copy(site / "_static" / "tex-svg.js", folder)
    pages = {
        "bare": r'<p class="math">\(x\)</p>',
        "cut": f'{MATH}<div style="overflow-x:hidden"><p class="math">'
        rf"\({'x + ' * 200} x\)</p></div>",
        "good": rf'{MATH}<p class="math">\(x\)</p><code>\frac</code>',
        "raw": "<p>the $$x$$ of it</p>",
        "refused": rf'{MATH}<p class="math">\(\nothing x\)</p>',
        "wider": '<div style="width:900px">x</div>',
    }
    for name, body in pages.items():
        (folder / f"{name}.html").write_text(f"<!doctype html><body>{body}")
    (folder / "said.html").write_text(
        "<script>console.error('said')</script><img src='http://other.invalid/x.png'>"
    )
    measured, console, requests = measure(folder, PHONE)
    assert len(console) >= 1
    assert "http://other.invalid/x.png" in requests
    seen = {
        name: {key for key, value in GOOD.items() if measured[name][key] != value}
        for name in measured
    }
    assert seen.pop(f"{PHONE} good.html") == set()
    for name in pages.keys() - {"good"}:
        assert name in seen[f"{PHONE} {name}.html"]
