"""HTML by the standard library's element tree, which escapes all text."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from typing import Any

Element = ElementTree.Element
Child = Element | str | None


def element(tag: str, *children: Child | Iterable[Child], **attributes: Any) -> Element:
    """Makes an element; ``class_`` is ``class``, other underscores are hyphens; None is omitted."""
    made = Element(tag)
    for name, value in attributes.items():
        if value is not None:
            text = f"{value:.6g}" if isinstance(value, float) else str(value)
            made.set(name.rstrip("_").replace("_", "-"), text)
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


def text_of(root: Element) -> str:
    """Returns the text of a page."""
    return "<!DOCTYPE html>\n" + ElementTree.tostring(root, encoding="unicode", method="html")
