"""Small parts that the sections of a page share."""

from collections.abc import Iterable, Sequence

from linkern.testing.report.html.markup import Element, Node, element

__all__ = [
    "MEANINGS",
    "SYMBOLS",
    "badge",
    "code",
    "pairs",
    "prose",
    "section",
    "shell",
    "table",
]

# Each verdict is a word and a symbol, so that it needs no colour.
SYMBOLS = {
    "passed": "✓",
    "failed": "✗",
    "xfailed": "(✗)",
    "error": "!",
    "inconclusive": "?",
    "unsupported": "\N{EN DASH}",
}
MEANINGS = {
    "passed": "no input was found that breaks the law",
    "failed": "an input was found that breaks the law",
    "xfailed": "failed, as was expected",
    "error": "the check could not be run to its end",
    "inconclusive": "nothing could be proved, or no input was tried",
    "unsupported": "the law does not apply to this target",
}


def section(identity: str, title: str, *children: Node | None) -> Element:
    """Return a section under a heading, which names it."""
    heading = element("h2", title, id=identity)
    return element("section", heading, *children, aria_labelledby=identity)


def prose(text: str, name: str = "p", **attributes: object) -> Element:
    """Return a sentence; what it has in backticks is code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # an odd backtick is only a backtick
        parts = [text]
    children = (element("code", p) if i % 2 else p for i, p in enumerate(parts))
    return element(name, *children, **attributes)


def code(value: object) -> Element:
    """Return a name or a number as it is written in a program."""
    return element("code", str(value))


def shell(line: str) -> Element:
    """Return a command, which breaks between its words alone."""
    words = [element("span", word, class_="word") for word in line.split(" ")]
    spaced = [node for word in words for node in (word, " ")]
    return element("pre", *spaced[:-1])


def pairs(rows: Iterable[tuple[str, Node | None]]) -> Element:
    """Return names with what they stand for, leaving out those that have nothing."""
    items = []
    for name, value in rows:
        if value is not None:
            items += [element("dt", name), element("dd", value)]
    return element("dl", *items)


def badge(verdict: str, word: str | None = None) -> Element:
    """Return a verdict, or what is said instead of it, with its symbol."""
    symbol = element("span", SYMBOLS[verdict], class_="symbol", aria_hidden="true")
    return element("span", symbol, f" {word or verdict}", class_=f"verdict {verdict}")


def table(
    named_by: str, names: Sequence[str], rows: Iterable[Sequence[str]]
) -> Element:
    """Return a table whose rows start with their name; it scrolls by itself.

    Parameters
    ----------
    named_by : str
        The ``id`` of its heading.
    names : sequence of str
        Of the columns.
    rows : iterable of sequence of str
        Their cells.
    """
    header = element("tr", *(element("th", name, scope="col") for name in names))
    body = [
        element("tr", element("th", first, scope="row"), *(map(_cell, rest)))
        for first, *rest in rows
    ]
    found = element("table", element("thead", header), element("tbody", *body))
    # What scrolls must be reachable by the keyboard, and say what it is.
    attributes = {"role": "region", "aria-labelledby": named_by, "tabindex": "0"}
    return element("div", found, class_="scrolls", **attributes)


def _cell(text: str) -> Element:
    return element("td", text, class_="number")
