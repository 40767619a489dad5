"""HTML by the standard library's element tree, which escapes all text; tables and their numbers."""

from __future__ import annotations

import base64
import gzip
import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from typing import Any

Element = ElementTree.Element
Child = Element | str | None


def element(tag: str, *children: Child | Iterable[Child], **attributes: Any) -> Element:
    """Makes an element; ``class_`` is ``class``, other underscores are hyphens; None is omitted."""
    made = Element(tag)
    for name, value in attributes.items():
        if value is not None:
            made.set(name.rstrip("_").replace("_", "-"), str(value))
    for child in children:
        for one in [child] if isinstance(child, str | Element) or child is None else child:
            _append(made, one)
    return made


def _append(parent: Element, child: Child) -> None:
    if child is None:
        return
    if isinstance(child, Element):
        parent.append(child)
    elif len(parent):
        parent[-1].tail = (parent[-1].tail or "") + child
    else:
        parent.text = (parent.text or "") + child


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> Element:
    """Makes a table whose first column names its rows; a wide one scrolls, also by keyboard."""
    made = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", [element("th", cell, scope="col") for cell in head])),
        element(
            "tbody",
            [
                element(
                    "tr",
                    element("th", row[0], scope="row"),
                    [element("td", cell) for cell in row[1:]],
                )
                for row in rows
            ],
        ),
    )
    return element("div", made, class_="scroll", tabindex=0, role="region", aria_label=caption)


def short(value: float) -> str:
    """Formats a number for a table: 0.25, 1200, 3.4 M.

    >>> short(0.25), short(1200.0), short(3_400_000.0), short(float("nan"))
    ('0.25', '1200', '3.4 M', '–')
    """
    if not math.isfinite(value):
        return "–"
    for size, name in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= size:
            size = 1e3 if name == " k" else size
            return f"{value / size:.4g}{name}"
    return f"{value:.4g}"


def packed(text: str) -> str:
    """Compresses a text; `charts.js` unpacks it."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def text_of(root: Element) -> str:
    """Returns the text of a page."""
    return "<!DOCTYPE html>\n" + ElementTree.tostring(root, encoding="unicode", method="html")
