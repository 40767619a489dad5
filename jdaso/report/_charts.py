"""Charts as SVG, without scripts: axes, lines distinguished by colour and dash, bands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ._axes import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axes, Line, short, ticks
from ._html import Element, element
from ._series import Thinned

DASHES = ("none", "7 3", "2 2", "9 3 2 3", "4 2 1 2 1 2", "1 3")
COLOURS = 6
_MARKS = 80  # the most drawn for each run and kind


class Sign(NamedTuple):
    """A checkpoint or a fault at the lower edge of a chart."""

    kind: str
    x: float
    style: int
    title: str


def line_chart(
    title: str, axes: Axes, lines: Sequence[Line], signs: Sequence[Sign] = ()
) -> Element:
    """Makes a figure: title, lines, legend, and the numbers, folded."""
    drawn = [part for line in lines for part in _line(axes, line)]
    said = "; ".join(f"{line.label}: {_said(line.points)}" for line in lines)
    return figure(
        title,
        svg(f"{title}. {said}.", [*frame(axes), *drawn, *_signs(axes, signs)]),
        legend([(line.label, swatch(line.style)) for line in lines]),
        numbers(title, axes, lines),
    )


def figure(title: str, *children: Element | None) -> Element:
    """Makes a chart with its title."""
    caption = element("figcaption", title)
    return element("figure", caption, *children, class_="card", aria_label=title)


def svg(label: str, children: Sequence[Element]) -> Element:
    """Makes the drawing itself, with a description in words."""
    return element("svg", children, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=label)


def frame(axes: Axes) -> list[Element]:
    """Makes the grid, ticks and names of the axes."""
    made = []
    for value in axes.y_ticks():
        y = round(axes.at_y(value), 1)
        made += [
            element("line", x1=LEFT, x2=RIGHT, y1=y, y2=y, class_="grid"),
            element("text", short(value), x=LEFT - 6, y=y + 4, class_="end"),
        ]
    for value in ticks(*axes.x):
        x = round(axes.at_x(value), 1)
        made += [
            element("line", x1=x, x2=x, y1=BOTTOM, y2=BOTTOM + 4, class_="axis"),
            element("text", short(value), x=x, y=BOTTOM + 17, class_="middle"),
        ]
    made.append(element("line", x1=LEFT, x2=RIGHT, y1=BOTTOM, y2=BOTTOM, class_="axis"))
    middle = (LEFT + RIGHT) / 2
    made.append(element("text", axes.x_label, x=middle, y=HEIGHT - 6, class_="middle"))
    across = f"rotate(-90 11 {(TOP + BOTTOM) / 2:g})"
    return [
        *made,
        element(
            "text", axes.y_label, x=11, y=(TOP + BOTTOM) / 2, transform=across, class_="middle"
        ),
    ]


def legend(entries: Sequence[tuple[str, Element]]) -> Element:
    """Explains the colours and dashes."""
    return element(
        "ul", [element("li", sample, " ", label) for label, sample in entries], class_="legend"
    )


def swatch(style: int) -> Element:
    """Makes a short piece of a line, for the legend."""
    stroke = element("line", x1=0, x2=28, y1=5, y2=5, **look(style))
    return element("svg", stroke, viewBox="0 0 28 10", class_="swatch", aria_hidden="true")


def patch(name: str) -> Element:
    """Makes a filled piece, for the legend."""
    return element(
        "svg",
        element("rect", width=28, height=10, class_=name),
        viewBox="0 0 28 10",
        class_="swatch",
        aria_hidden="true",
    )


def look(style: int) -> dict[str, str]:
    """Returns the colour and dash of a line from its number."""
    dash = DASHES[(style + style // COLOURS) % len(DASHES)]
    return {"class_": f"line s{style % COLOURS}", "stroke_dasharray": dash}


def numbers(title: str, axes: Axes, lines: Sequence[Line], rows: int = 9) -> Element:
    """Makes the chart's tables, for readers who cannot see it."""
    return element(
        "details",
        element("summary", "Numbers"),
        [
            table(
                f"{title}: {line.label}",
                [axes.x_label, "least", "mean", "largest"],
                [
                    [short(v) for v in point]
                    for point in zip(*thin_rows(line.points, rows), strict=True)
                ],
            )
            for line in lines
        ],
    )


def thin_rows(points: Thinned, rows: int) -> Thinned:
    """Returns at most `rows` of the points, evenly spaced, including the first and the last."""
    chosen = np.unique(np.linspace(0, points.x.size - 1, rows).astype(int))
    return Thinned(*(column[chosen] for column in points))


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str | Element]]) -> Element:
    """Makes a table whose first column names its rows; a wide one scrolls, also by keys."""
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


def path(axes: Axes, x: np.ndarray, y: np.ndarray) -> str:
    """Returns an SVG path through points."""
    return "M" + "L".join(
        f"{axes.at_x(a):.1f} {axes.at_y(b):.1f}" for a, b in zip(x, y, strict=True)
    )


def _line(axes: Axes, line: Line) -> list[Element]:
    points, made = line.points, []
    style = line.style % COLOURS
    if (points.low != points.high).any():
        around = np.concatenate([points.x, points.x[::-1]])
        edge = np.concatenate([points.high, points.low[::-1]])
        made.append(element("path", d=path(axes, around, edge) + "Z", class_=f"band s{style}"))
    title = element("title", f"{line.label}: {_said(points)}")
    if points.x.size == 1:
        place = {"cx": round(axes.at_x(points.x[0]), 1), "cy": round(axes.at_y(points.mean[0]), 1)}
        return [*made, element("circle", title, r=3, class_=f"dot s{style}", **place)]
    return [*made, element("path", title, d=path(axes, points.x, points.mean), **look(line.style))]


def _signs(axes: Axes, signs: Sequence[Sign]) -> list[Element]:
    """Draws a triangle for a checkpoint, a cross for a fault."""
    made, groups = [], {}
    for sign in signs:
        if axes.x[0] <= sign.x <= axes.x[1]:
            groups.setdefault((sign.kind, sign.style), []).append(sign)
    for sign in (s for group in groups.values() for s in group[:: -(-len(group) // _MARKS)]):
        x, style = round(axes.at_x(sign.x), 1), f"s{sign.style % COLOURS}"
        title = element("title", sign.title)
        if sign.kind == "checkpoint":
            made.append(
                element("path", title, d=f"M{x - 4} {BOTTOM}h8l-4 -7Z", class_=f"dot {style}")
            )
        else:
            cross = f"M{x - 4} {BOTTOM - 18}l8 8m-8 0l8 -8M{x} {BOTTOM - 10}V{BOTTOM}"
            made.append(element("path", title, d=cross, class_="fault"))
    return made


def _said(points: Thinned) -> str:
    if points.x.size == 1:
        return short(points.mean[0])
    return (
        f"from {short(points.mean[0])} to {short(points.mean[-1])}, least "
        f"{short(points.low.min())}, largest {short(points.high.max())}"
    )
