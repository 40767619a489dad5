"""Charts that Bokeh draws in the browser: lines with bands, marks, a legend of switches, tables.

The only importer of Bokeh (``pip install "jdaso[report]"``). Colours stand out on light and on
dark backgrounds; ``style.css`` sets the colours of axes and grids.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import bokeh.plotting
import numpy as np
from bokeh.embed import json_item
from bokeh.models import BasicTickFormatter, DataRange1d, HoverTool, LogTicker
from bokeh.resources import Resources

from ._html import Element, element, packed, short, table
from ._series import Thinned, thin

COLOURS = ("#2b83d0", "#d1661a", "#16936b", "#b85fae", "#95790f", "#7c848e")
DASHES = ([], [7, 3], [2, 2], [9, 3, 2, 3], [4, 2, 1, 2, 1, 2], [1, 3])
TOOLS = "pan,box_zoom,wheel_zoom,zoom_in,zoom_out,pan_left,pan_right,reset"
FAULT = "#e5484d"
MARKERS = {"checkpoint": "triangle", "fault": "x"}
NAMES = ("least", "mean", "largest")
"""Names of the band's lower edge, the line, and the upper edge."""

Names = tuple[str, str, str]
Plot = Any
"""Bokeh's figure; its types do not cover what its documentation allows."""
Switch = tuple[str, Element]
"""The name of what is drawn, and a sample for the legend."""


class ChartLine(NamedTuple):
    """One line of a chart.

    Attributes:
        label: for the legend.
        style: a number that gives its colour and dash.
        points: its points; a pale band lies between the least and the largest.
        stairs: whether the line stays at a number until the next one.
    """

    label: str
    style: int
    points: Thinned
    stairs: bool = False


class Sign(NamedTuple):
    """A checkpoint or a fault, drawn on the line of its run."""

    kind: str
    x: float
    run: str
    text: str


def library() -> str:
    """Returns Bokeh's JavaScript, without its widgets and tables."""
    return Resources(mode="inline", components=["bokeh"], log_level=None).js_raw[0]


def lines_of(data: Iterable[tuple[str, int, np.ndarray, np.ndarray]]) -> list[ChartLine]:
    """Makes lines from (label, style, x, y), without those that have no numbers."""
    made = [ChartLine(label, style, thin(x, y)) for label, style, x, y in data]
    return [line for line in made if line.points.x.size]


def new_plot(x_label: str, y_label: str, **options: Any) -> Plot:
    """Makes an empty plot as wide as its place, with zoom, pan and reset; options are Bokeh's."""
    labels = {"x_axis_label": x_label, "y_axis_label": y_label}
    look = dict.fromkeys(("background_fill_color", "border_fill_color", "outline_line_color"))
    place = {"height": 300, "sizing_mode": "stretch_width", "toolbar_location": "above"}
    range_of_visible = {"y_range": DataRange1d(only_visible=True)}
    options = place | look | labels | range_of_visible | options
    plot: Plot = bokeh.plotting.figure(tools=TOOLS, **options)
    plot.toolbar.update(logo=None)
    plot.xaxis[0].update(formatter=BasicTickFormatter(use_scientific=False))
    return plot


def scalar_plot(x_label: str, y_label: str, lines: Sequence[ChartLine]) -> Plot:
    """Makes an empty plot, logarithmic if the numbers of the lines are positive and far apart."""
    low = min(float(line.points.low.min()) for line in lines)
    high = max(float(line.points.high.max()) for line in lines)
    if not low > 0 or not 10 <= high / low < np.inf:
        return new_plot(x_label, y_label)
    plot = new_plot(x_label, f"{y_label}, log scale", y_axis_type="log")
    plot.yaxis[0].update(formatter=BasicTickFormatter(), ticker=few_ticks())
    return plot


def few_ticks() -> LogTicker:
    """Makes ticks at 1, 2 and 5 of each decade, for an axis of few decades."""
    return LogTicker(mantissas=[1, 2, 5], num_minor_ticks=10)


def line_chart(
    title: str,
    plot: Plot,
    lines: Sequence[ChartLine],
    signs: Sequence[Sign] = (),
    names: Names = NAMES,
) -> Element:
    """Makes a figure of lines."""
    draw_lines(plot, lines, names)
    for line in lines:
        if some := [sign for sign in signs if sign.run == line.label]:
            draw_signs(plot, line, some)
    switches = [(line.label, swatch(line.style)) for line in lines]
    return figure(title, plot, described(lines), switches, numbers(title, plot, lines, names))


def draw_lines(plot: Plot, lines: Sequence[ChartLine], names: Names = NAMES) -> None:
    """Draws lines and their bands; a single point is a dot."""
    drawn = []
    for label, style, points, stairs in lines:
        source = {name: column.astype(np.float32) for name, column in points._asdict().items()}
        colour = COLOURS[style % len(COLOURS)]
        if (points.low != points.high).any():
            band = {"fill_color": colour, "fill_alpha": 0.2, "name": label}
            plot.varea("x", "low", "high", source=source, **band)
        look = {"color": colour, "name": label, "source": source}
        if points.x.size == 1:
            drawn.append(plot.scatter("x", "mean", size=7, **look))
            continue
        look |= {"line_dash": dash_of(style), "line_width": 2}
        step = {"mode": "after"} if stairs else {}
        drawn.append((plot.step if stairs else plot.line)("x", "mean", **look, **step))
    x_label = plot.xaxis[0].axis_label
    tips = [("", "$name"), (x_label, "@x"), (names[1], "@mean")]
    tips.append(("range" if names == NAMES else f"{names[0]} to {names[2]}", "@low to @high"))
    add_hover(plot, drawn, tips)


def draw_signs(plot: Plot, line: ChartLine, signs: Sequence[Sign]) -> None:
    """Draws a triangle on the line for a checkpoint, a cross for a fault."""
    x, colour = np.array([sign.x for sign in signs]), COLOURS[line.style % len(COLOURS)]
    source = {
        "x": x,
        "y": np.interp(x, line.points.x, line.points.mean),
        "text": [sign.text for sign in signs],
        "marker": [MARKERS[sign.kind] for sign in signs],
        "ink": [FAULT if sign.kind == "fault" else colour for sign in signs],
    }
    look = {"size": 9, "line_width": 2, "color": "ink", "marker": "marker", "name": line.label}
    drawn = plot.scatter("x", "y", source=source, **look)
    add_hover(plot, [drawn], "@text")


def add_hover(plot: Plot, drawn: list[Any], tips: str | list[tuple[str, str]]) -> None:
    """Shows text where the pointer is over something drawn; Bokeh fills in the columns."""
    plot.add_tools(HoverTool(renderers=drawn, tooltips=tips, visible=False))


def described(lines: Sequence[ChartLine]) -> str:
    """Describes lines in words."""
    found = []
    for line in lines:
        points = line.points
        ends = f"{line.label}: from {short(points.mean[0])} to {short(points.mean[-1])}"
        found.append(f"{ends}, least {short(points.low.min())}, largest {short(points.high.max())}")
    return "; ".join(found)


def figure(
    title: str, plot: Plot, words: str, switches: Iterable[Switch], tables: Iterable[Element]
) -> Element:
    """Makes a chart with its title, a description in words, a legend of switches, and tables."""
    data = json.dumps(json_item(plot), separators=(",", ":"))
    script = element("script", packed(data), type="text/plain")
    place = {"class_": "chart", "style": f"min-height: {plot.height}px"}
    entries = []
    for name, sample in switches:
        box = element("input", type="checkbox", checked="", value=name)
        entries.append(element("li", element("label", box, sample, " ", name)))
    return element(
        "figure",
        element("figcaption", title),
        element("div", script, role="group", aria_label=f"{title}. {words}.", **place),
        element("ul", entries, class_="legend"),
        element("details", element("summary", "Numbers"), tables),
        class_="card",
        aria_label=title,
    )


def dash_of(style: int) -> list[int]:
    """Returns the dash of a line: one for each colour, and others when the colours repeat."""
    return DASHES[(style + style // len(COLOURS)) % len(DASHES)]


def swatch(style: int) -> Element:
    """Makes a short piece of a line, for the legend."""
    dash = " ".join(map(str, dash_of(style))) or None
    return patch(COLOURS[style % len(COLOURS)], stroke_width=2, stroke_dasharray=dash)


def patch(colour: str, **look: Any) -> Element:
    """Makes a filled piece, for the legend."""
    stroke = element("line", x2=28, y1=5, y2=5, stroke=colour, **look)
    return element("svg", stroke, viewBox="0 0 28 10", class_="swatch", aria_hidden="true")


def numbers(
    title: str, plot: Plot, lines: Sequence[ChartLine], names: Names = NAMES, rows: int = 9
) -> list[Element]:
    """Makes a chart's tables, for readers who cannot see charts: at most `rows` points of each."""
    made, head = [], [plot.xaxis[0].axis_label, *names]
    for line in lines:
        points = np.stack(line.points, axis=1)
        chosen = np.unique(np.linspace(0, len(points) - 1, rows).astype(int))
        cells = [[short(value) for value in point] for point in points[chosen]]
        made.append(table(f"{title}: {line.label}", head, cells))
    return made
