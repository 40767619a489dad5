"""A plot of a node's events: steps, exchanges, and the time in which a step was blocked."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..traces._timeline import Event

_ROWS = {"mean": "exchange", "copy": "held up", "wait": "held up"}
_LEFT_OUT = ("chunk", "compute", "pack", "merge")
"""Parts of drawn events, many of which would overlap in a row; `jdaso.traces` shows them."""


def plot_timeline(events: Iterable[Event], path: str | Path) -> None:
    """Draws events as bars: one row for steps, one for exchanges, one for delays of steps.

    Args:
        events: of one node, such as some of ``session.timeline.events``. Those named "step" are
            the caller's own (``session.timeline.record("step", n, begin_seconds)``).
        path: the file to write; its ending gives the format (.png, .svg, .pdf).

    Raises:
        ImportError: matplotlib is missing.
        ValueError: there are no events, or matplotlib does not support the ending.
    """
    from matplotlib.figure import Figure

    events = [event for event in events if event.name not in _LEFT_OUT]
    events.sort(key=lambda event: event.begin_seconds)
    if not events:
        raise ValueError("There are no events to draw: record some while a session is open.")
    begin, rows = events[0].begin_seconds, {}
    for event in events:
        rows.setdefault(_ROWS.get(event.name, event.name), []).append(event)
    names = [name for name in ("step", "exchange", "held up") if name in rows]
    names += [name for name in rows if name not in names]
    figure = Figure(figsize=(8, 0.8 + 0.6 * len(names)), layout="constrained")
    axes = figure.subplots()
    for place, name in enumerate(names):
        bars = [
            (1e3 * (e.begin_seconds - begin), 1e3 * (e.end_seconds - e.begin_seconds))
            for e in rows[name]
        ]
        axes.broken_barh(bars, (place - 0.35, 0.7), edgecolor="white", facecolor=f"C{place}")
        if name != "held up":
            for (left, width), event in zip(bars, rows[name], strict=True):
                axes.text(
                    left + width / 2,
                    place,
                    str(event.step),
                    ha="center",
                    va="center",
                    color="white",
                    clip_on=True,
                )
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds; the numbers are steps")
    figure.savefig(path, dpi=150)
