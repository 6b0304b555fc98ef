"""Links of a folder of HTML pages, and the text that a reader sees."""

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

# TeX that no program has turned into mathematics.
RAW_TEX = re.compile(r"\$\$|\\(?:[a-zA-Z]{2,}|[()\[\]])")
REFERENCES = {"a": "href", "link": "href", "img": "src", "script": "src"}
# Elements that hold nothing else, so that they have no end.
VOID = {"area", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}


@dataclass
class Page(HTMLParser):
    """Anchors and references of a page, and its text outside of code and formulas."""

    anchors: set = field(default_factory=set)
    references: list = field(default_factory=list)
    loaded: list = field(default_factory=list)
    text: list = field(default_factory=list)
    hidden: list = field(default_factory=list)

    def __post_init__(self):
        super().__init__()

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.anchors |= {values[x] for x in ("id", "name") if values.get(x)}
        reference = values.get(REFERENCES.get(tag))
        if reference is not None:
            self.references.append(reference)
            if tag != "a":
                self.loaded.append(reference)
        if tag in VOID:
            return
        classes = (values.get("class") or "").split()
        inside = tag in ("code", "pre", "script", "style", "title") or "math" in classes
        self.hidden.append(bool(self.hidden and self.hidden[-1]) or inside)

    def handle_endtag(self, tag):
        if tag not in VOID and self.hidden:
            self.hidden.pop()

    def handle_data(self, data):
        if not (self.hidden and self.hidden[-1]):
            self.text.append(data)


def read_pages(folder):
    """Return the pages of a folder by their paths."""
    pages = {}
    for path in sorted(folder.rglob("*.html")):
        page = pages[path.resolve()] = Page()
        page.feed(path.read_text(encoding="utf-8"))
    return pages


def dead_links(folder):
    """Return each reference that leads nowhere inside a folder, with its page."""
    pages = read_pages(folder)
    dead = []
    for path, page in pages.items():
        for reference in page.references:
            url = urlsplit(reference)
            if url.scheme or url.netloc:
                continue
            target = path
            if url.path:
                target = (path.parent / unquote(url.path)).resolve()
            anchor = unquote(url.fragment)
            known = pages[target].anchors if target in pages else {anchor}
            if not target.is_file() or (anchor and anchor not in known):
                dead.append((path.name, reference))
    return dead


def raw_tex(folder):
    """Return what stands as TeX in the text of the pages of a folder."""
    return [
        (path.name, line.strip())
        for path, page in read_pages(folder).items()
        for line in "".join(page.text).splitlines()
        if RAW_TEX.search(line)
    ]


def loaded_from_elsewhere(folder):
    """Return scripts, styles and images that another server would have to send."""
    return [
        (path.name, reference)
        for path, page in read_pages(folder).items()
        for reference in page.loaded
        if urlsplit(reference).netloc
    ]


LOOKS = (dead_links, raw_tex, loaded_from_elsewhere)
