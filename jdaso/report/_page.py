"""The page: its head with Bokeh inside, its policy, and its sections."""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from ._html import Element, element, packed, text_of
from ._runs import ReportError, Run, counted

POLICY = (
    "default-src 'none'; script-src {}; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)


Section = tuple[str, str, Sequence[Element]]
"""Key, name and content."""


def make_page(runs: Sequence[Run], title: str = "jdaso report") -> str:
    """Makes one HTML page about one or several runs, side by side.

    The page is self-contained and loads nothing. It runs Bokeh and a short script of its own; its
    policy forbids all other scripts, and without scripts the page still has all tables.

    Args:
        runs: from `read_run`.
        title: of the page.

    Raises:
        ImportError: Bokeh is missing.
        ReportError: there are no runs.
    """
    if not runs:
        raise ReportError("There are no runs to report on.")
    with needing_bokeh():
        from . import _sections
    runs = with_names(runs)
    return page_of(title, _told(runs), _sections.sections_of(runs), "python -m jdaso report")


@contextlib.contextmanager
def needing_bokeh() -> Iterator[None]:
    """Context of imports that need Bokeh.

    Raises:
        ImportError: Bokeh is missing.
    """
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f"The report draws its charts with Bokeh, which is missing ({error}): "
            'pip install "jdaso[report]".'
        ) from error


def page_of(title: str, told: str, sections: Sequence[Section], maker: str) -> str:
    """Makes a page from its sections.

    Args:
        title: of the page.
        told: a line below the title.
        sections: the first is the summary.
        maker: the command that made the page.
    """
    from . import _charts

    library = _charts.library()
    script, style = (
        Path(__file__).with_name(name).read_text(encoding="utf-8")
        for name in ("charts.js", "style.css")
    )
    body = element(
        "body",
        element("a", "Skip to the summary", href=f"#{sections[0][0]}", class_="skip"),
        element("header", element("h1", title), element("p", told), _contents(sections)),
        element("main", [_section(*section) for section in sections]),
        element("footer", element("p", f"Made by {maker}.")),
        element("script", packed(library), type="text/plain", id="library"),
        element("script", script),
    )
    policy = POLICY.format(" ".join(map(_hash, (script, library))))
    return text_of(element("html", _head(title, policy, style), body, lang="en"))


def _head(title: str, policy: str, style: str) -> Element:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", title),
        element("style", style),
        element("noscript", element("style", ".chart, .legend { display: none; }")),
    )


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def with_names(runs: Sequence[Run]) -> list[Run]:
    """Adds a number to the names of runs that share a name."""
    names = [run.name for run in runs]
    for k, run in enumerate(runs):
        if names.count(names[k]) > 1:
            run.name = f"{names[k]} ({k + 1})"
    return list(runs)


def _told(runs: Sequence[Run]) -> str:
    damaged = sum(len(run.damaged) for run in runs)
    names = ", ".join(run.name for run in runs)
    said = f"{counted(len(runs), 'run')}: {names}."
    return said + (f" Left out: {counted(damaged, 'damaged row')}." if damaged else "")


def _contents(sections: Sequence[Section]) -> Element:
    links = [element("li", element("a", name, href=f"#{key}")) for key, name, _ in sections]
    return element("nav", element("ul", links), aria_label="Sections")


def _section(key: str, name: str, content: Sequence[Element]) -> Element:
    return element(
        "section", element("h2", name, id=f"{key}-title"), content, id=key,
        aria_labelledby=f"{key}-title",
    )  # fmt: skip
