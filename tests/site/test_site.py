"""The built documentation: no dead link, no raw TeX, nothing loaded from elsewhere."""

import pytest

from linkern.adapters.catalogue import function_of
from linkern.testing import CHECKS, OPERATORS
from tests.site.links import LOOKS, dead_links, loaded_from_elsewhere, raw_tex


@pytest.mark.parametrize("look", LOOKS)
def test_the_site_is_whole(site, look):
    assert look(site) == []


def test_every_operator_and_check_has_its_page(site):
    for name in {function_of(one.name)[0] for one in OPERATORS.values()}:
        page = (site / "generated" / "operators" / f"{name}.html").read_text("utf-8")
        assert f'id="linkern.{name}"' in page
    for name in CHECKS:
        assert (site / "generated" / "checks" / f"{name}.html").is_file()


@pytest.mark.parametrize(
    ("look", "body"),
    [
        (dead_links, '<a href="other.html">'),
        (dead_links, '<a href="#nowhere">'),
        (dead_links, '<img src="lost.png"><p id="here"></p><a href="page.html#there">'),
        (raw_tex, "<br><p>$$x$$</p>"),
        (raw_tex, r"<code>x</code><p>\frac 1 2</p>"),
        (raw_tex, r"<span class='math'>\(x\)</span> and \(y\)"),
        (loaded_from_elsewhere, "<script src='https://cdn.invalid/x.js'></script>"),
    ],
)
def test_each_look_sees_what_is_wrong(tmp_path, look, body):
    (tmp_path / "page.html").write_text(f"<body>{body}</body>", encoding="utf-8")
    for other in LOOKS:
        assert bool(other(tmp_path)) == (other is look)


def test_the_looks_see_nothing_wrong_in_a_good_page(tmp_path):
    body = (
        r'<h1 id="top">x</h1><a href="#top"></a><a href="sub/%61.html#b">y</a>'
        r'<a href="https://example.org">z</a><code>\frac</code> C:\x'
        r'<span class="math notranslate">\(\frac 1 2\)</span>'
    )
    (tmp_path / "page.html").write_text(body, encoding="utf-8")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.html").write_text('<p id="b">', encoding="utf-8")
    assert [look(tmp_path) for look in LOOKS] == [[], [], []]
