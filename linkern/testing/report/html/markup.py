"""HTML and SVG as trees, in which text is escaped because there is no other way.

What a target says ends up in a page that people open. A string is always text here,
and only `element` makes a tag, so that no message can become markup.
"""

import html
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Element", "Node", "data_block", "element", "render"]

# Elements without content or end tag; and, for people who read the source, those after
# which a line ends.
_VOID = frozenset({"link", "meta"})
_LINES = frozenset(
    {"article", "body", "dd", "details", "div", "figure", "h1", "h2", "h3", "head"}
    | {"header", "footer", "link", "main", "meta", "p", "pre", "script", "section"}
    | {"style", "svg", "table", "title", "tr", "ul"}
)
# Not characters of a page: controls, halves of surrogates, marks that reorder the text
# around them. Controls have pictures, the rest becomes the replacement character.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


@dataclass(frozen=True)
class Element:
    """One element of a page.

    Parameters
    ----------
    name : str
        Its tag.
    children : tuple of Element or str
        What is inside; strings are text.
    attributes : mapping of str to str
        Their values are text, too.
    raw : bool
        Whether the text is written as it is: style sheets and blocks of data, which
        HTML does not unescape.
    """

    name: str
    children: tuple["Node", ...]
    attributes: Mapping[str, str]
    raw: bool = False


Node = Element | str


def element(name: str, /, *children: Node | None, **attributes: object) -> Element:
    """Return an element; None stands for no child, or no attribute.

    Parameters
    ----------
    name : str
        Its tag.
    *children : Element, str or None
        What is inside.
    **attributes : object
        ``class_`` is ``class``, ``aria_label`` is ``aria-label``; numbers are written
        with six digits.

    Examples
    --------
    >>> render(element("code", "1 < 2", class_="note", hidden=None))
    '<code class="note">1 &lt; 2</code>'
    """
    return Element(
        name,
        tuple(child for child in children if child is not None),
        {
            key.rstrip("_").replace("_", "-"): (
                f"{value:.6g}" if isinstance(value, float) else str(value)
            )
            for key, value in attributes.items()
            if value is not None
        },
        raw=name == "style",
    )


def data_block(values: Mapping[str, Any], identity: str) -> Element:
    """Return JSON values as a block of data, which no browser runs.

    Parameters
    ----------
    values : mapping
        Whatever `json` can write.
    identity : str
        The ``id`` of the block.
    """
    text = json.dumps(values, allow_nan=False, separators=(",", ":"))
    for character in "<>&":  # so that no string in it can end the block
        text = text.replace(character, f"\\u{ord(character):04x}")
    attributes = {"type": "application/json", "id": identity}
    return Element("script", (text,), attributes, raw=True)


def render(node: Node) -> str:
    """Return a tree as text."""
    if isinstance(node, str):
        return html.escape(_UNPRINTABLE.sub(_picture, node))
    attributes = "".join(
        f' {key}="{render(value)}"' for key, value in node.attributes.items()
    )
    end = "\n" if node.name in _LINES else ""
    if node.name in _VOID:
        return f"<{node.name}{attributes}>{end}"
    inside = "".join(
        child if node.raw and isinstance(child, str) else render(child)
        for child in node.children
    )
    return f"<{node.name}{attributes}>{inside}</{node.name}>{end}"


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    return chr(0x2400 + code) if code < 32 else "\ufffd"
