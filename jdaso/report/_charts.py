"""Charts that Bokeh draws in the browser: lines with bands, marks, a legend of switches, tables.

The only importer of Bokeh (``pip install "jdaso[report]"``). Colours stand out on light and on
dark ground; ``style.css`` sets the colours of axes and grids.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import bokeh.plotting
import numpy as np
from bokeh.embed import json_item
from bokeh.models import BasicTickFormatter, ColumnDataSource, DataRange1d, HoverTool, PlainText
from bokeh.resources import Resources

from ._html import Element, element, short, table
from ._series import Thinned, thin

COLOURS = ("#2b83d0", "#d1661a", "#16936b", "#b85fae", "#95790f", "#7c848e")
DASHES = ([], [7, 3], [2, 2], [9, 3, 2, 3], [4, 2, 1, 2, 1, 2], [1, 3])
FAULT = "#e5484d"
_TOOLS = "pan,box_zoom,wheel_zoom,zoom_in,zoom_out,pan_left,pan_right,reset"
_MOST_MARKS = 80  # drawn for each run and kind

Plot = Any  # Bokeh's figure, whose types do not cover what its documentation allows
Switch = tuple[str, Element]
"""A name that renderers have, and the sample beside it in the legend."""


class Line(NamedTuple):
    """One line of a chart.

    Attributes:
        label: for the legend.
        style: a number that gives its colour and dash.
        points: its points; a pale band lies between the least and the largest.
        stairs: whether a number stays until it changes.
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


def lines_of(data: Iterable[tuple[str, int, np.ndarray, np.ndarray]]) -> list[Line]:
    """Makes lines from (label, style, x, y), without those that have no number."""
    made = [Line(label, style, thin(x, y)) for label, style, x, y in data]
    return [line for line in made if line.points.x.size]


def line_chart(
    title: str, plot: Plot, lines: Sequence[Line], signs: Sequence[Sign] = ()
) -> Element:
    """Makes a figure: title, lines, legend, and the numbers, folded."""
    draw_lines(plot, lines)
    for line in lines:
        draw_signs(plot, line, [sign for sign in signs if sign.run == line.label])
    switches = [(line.label, swatch(line.style)) for line in lines]
    return figure(title, plot, said(lines), switches, numbers(title, x_label(plot), lines))


def scalar_plot(x_label: str, y_label: str, lines: Sequence[Line]) -> Plot:
    """Makes an empty plot, logarithmic if the numbers of the lines are positive and far apart."""
    low = min(float(line.points.low.min()) for line in lines)
    high = max(float(line.points.high.max()) for line in lines)
    if not low > 0 or not 10 <= high / low < np.inf:
        return new_plot(x_label, y_label)
    plot = new_plot(x_label, f"{y_label}, log scale", y_axis_type="log")
    plot.yaxis.formatter = BasicTickFormatter()
    plot.yaxis.ticker.mantissas = [1, 2, 5]
    return plot


def new_plot(x_label: str, y_label: str, **options: Any) -> Plot:
    """Makes an empty plot as wide as its place, with zoom, pan and reset; options are Bokeh's."""
    options = {"y_range": DataRange1d(only_visible=True)} | options
    plot = bokeh.plotting.figure(
        height=300,
        sizing_mode="stretch_width",
        tools=_TOOLS,
        toolbar_location="above",
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        **options,
    )
    plot.toolbar.logo = None
    # A str could be read as mathematics.
    plot.xaxis.axis_label, plot.yaxis.axis_label = PlainText(text=x_label), PlainText(text=y_label)
    plot.xaxis.formatter = BasicTickFormatter(use_scientific=False)
    return plot


def x_label(plot: Plot) -> str:
    """Returns the name of a plot's x axis."""
    return plot.xaxis[0].axis_label.text


def draw_lines(plot: Plot, lines: Sequence[Line]) -> None:
    """Draws lines and their bands; a single point is a dot."""
    drawn = []
    for line in lines:
        data: dict[str, Any] = {n: c.astype(np.float32) for n, c in line.points._asdict().items()}
        options: dict[str, Any] = {"name": line.label, "source": ColumnDataSource(data)}
        colour = COLOURS[line.style % len(COLOURS)]
        if (line.points.low != line.points.high).any():
            plot.varea("x", "low", "high", fill_color=colour, fill_alpha=0.2, **options)
        if line.points.x.size == 1:
            drawn.append(plot.scatter("x", "mean", color=colour, size=7, **options))
            continue
        options |= {"line_color": colour, "line_dash": dash_of(line.style), "line_width": 2}
        draw = plot.step if line.stairs else plot.line
        mode = {"mode": "after"} if line.stairs else {}
        drawn.append(draw("x", "mean", **mode, **options))
    tips = [("", "$name"), (x_label(plot), "@x"), ("mean", "@mean"), ("range", "@low to @high")]
    plot.add_tools(HoverTool(renderers=drawn, tooltips=tips))


def draw_signs(plot: Plot, line: Line, signs: Sequence[Sign]) -> None:
    """Draws a triangle on the line for a checkpoint, a cross for a fault."""
    points = line.points
    colour = COLOURS[line.style % len(COLOURS)]
    for kind, marker, ink in (("checkpoint", "triangle", colour), ("fault", "x", FAULT)):
        some = [s for s in signs if s.kind == kind and points.x[0] <= s.x <= points.x[-1]]
        if some := some[:: -(-len(some) // _MOST_MARKS) or 1]:
            x = np.array([sign.x for sign in some])
            y, text = np.interp(x, points.x, points.mean), [sign.text for sign in some]
            source = ColumnDataSource({"x": x, "y": y, "text": text})
            options = {"marker": marker, "size": 9, "color": ink, "line_width": 2}
            drawn = plot.scatter("x", "y", source=source, name=line.label, **options)
            plot.add_tools(HoverTool(renderers=[drawn], tooltips="@text", visible=False))


def dash_of(style: int) -> list[int]:
    """Returns the dash of a line: another for each colour, and again for more lines than these."""
    return DASHES[(style + style // len(COLOURS)) % len(DASHES)]


def said(lines: Sequence[Line]) -> str:
    """Describes lines in words."""
    told = []
    for label, _, points, _ in lines:
        ends = f"from {short(points.mean[0])} to {short(points.mean[-1])}"
        told.append(
            f"{label}: {ends}, least {short(points.low.min())}, largest {short(points.high.max())}"
        )
    return "; ".join(told)


def figure(
    title: str,
    plot: Plot,
    about: str,
    switches: Iterable[Switch],
    tables: Iterable[Element],
) -> Element:
    """Makes a chart with its title, its description in words, its legend and its numbers."""
    data = json.dumps(json_item(plot), separators=(",", ":")).replace("<", "\\u003c")
    script = element("script", data, type="application/json")
    place = {"class_": "chart", "style": f"min-height: {plot.height}px"}
    return element(
        "figure",
        element("figcaption", title),
        element("div", script, role="group", aria_label=f"{title}. {about}.", **place),
        legend(switches),
        element("details", element("summary", "Numbers"), tables),
        class_="card",
        aria_label=title,
    )


def legend(switches: Iterable[Switch]) -> Element:
    """Explains colours and dashes; each entry shows or hides what it explains."""
    entries = []
    for name, sample in switches:
        box = element("input", type="checkbox", checked="", value=name)
        entries.append(element("li", element("label", box, sample, " ", name)))
    return element("ul", entries, class_="legend")


def swatch(style: int) -> Element:
    """Makes a short piece of a line, for the legend."""
    dash = " ".join(map(str, dash_of(style))) or None
    colour = COLOURS[style % len(COLOURS)]
    stroke = element("line", x2=28, y1=5, y2=5, stroke=colour, stroke_dasharray=dash)
    return element("svg", stroke, viewBox="0 0 28 10", class_="swatch", aria_hidden="true")


def patch(colour: str, opacity: float = 1) -> Element:
    """Makes a filled piece, for the legend."""
    fill = element("rect", width=28, height=10, fill=colour, fill_opacity=opacity)
    return element("svg", fill, viewBox="0 0 28 10", class_="swatch", aria_hidden="true")


def numbers(title: str, x_label: str, lines: Sequence[Line], rows: int = 9) -> list[Element]:
    """Makes the chart's tables, for readers who cannot see it: at most `rows` points of each."""
    made = []
    for line in lines:
        points = np.stack(line.points, axis=1)
        chosen = np.unique(np.linspace(0, len(points) - 1, rows).astype(int))
        cells = [[short(value) for value in point] for point in points[chosen]]
        head = [x_label, "least", "mean", "largest"]
        made.append(table(f"{title}: {line.label}", head, cells))
    return made
