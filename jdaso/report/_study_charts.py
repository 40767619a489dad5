"""Charts of a study by Bokeh: curves with bands, and ratios with their intervals."""

from __future__ import annotations

from collections.abc import Sequence

from bokeh.models import BasicTickFormatter, BoxAnnotation

from ..fabric._study.shown import Chart, Verdict
from ._charts import COLOURS, ChartLine, add_hover, few_ticks, figure, line_chart, new_plot, patch
from ._html import Element, short, table
from ._series import Thinned

SPREAD = ("5 %", "median", "95 %")
INKS = {
    "no significant effect": COLOURS[2],
    "slower": COLOURS[1],
    "faster": COLOURS[0],
    "not enough data": COLOURS[5],
}


def chart_of(chart: Chart) -> Element:
    """Draws curves."""
    options = {f"{axis}_axis_type": "log" for axis in chart.log}
    plot = new_plot(chart.x_label, chart.y_label, **options)
    if chart.log == "x":  # levels of x are a few rates, near each other
        plot.xaxis[0].update(ticker=few_ticks())
    if "y" in chart.log:
        plot.yaxis[0].update(formatter=BasicTickFormatter())
    lines = [
        ChartLine(curve.label, k, Thinned(curve.x, curve.low, curve.median, curve.high))
        for k, curve in enumerate(chart.curves)
    ]
    return line_chart(chart.title, plot, lines, names=SPREAD)


def ratio_chart(numbered: Sequence[tuple[str, Verdict]], title: str) -> Element | None:
    """Draws the ratios of two levels as dots on their intervals; None if there are no ratios.

    Args:
        numbered: number in the table of verdicts, and verdict, all of one pair of levels.
        title: of the chart.
    """
    known = [(number, one) for number, one in numbered if one.ratio.replicates > 1]
    if not known:
        return None
    rows, margin = [number for number, _ in known][::-1], known[0][1].margin
    low, high = min(v.ratio.low for _, v in known), max(v.ratio.high for _, v in known)
    reach = (min(low, 1 / (1 + margin)) / 1.02, max(high, 1 + margin) * 1.02)
    label = "ratio of seconds, log scale; the bar is the margin"
    look = {"y_range": rows, "x_range": reach, "x_axis_type": "log", "height": 130 + 18 * len(rows)}
    plot = new_plot(label, "", **look)
    plot.add_layout(
        BoxAnnotation(left=1 / (1 + margin), right=1 + margin, fill_alpha=0.15, fill_color="gray")
    )
    drawn, switches = [], []
    for said, ink in INKS.items():
        if some := [(number, one) for number, one in known if one.said == said]:
            drawn += _draw(plot, said, some)
            switches.append((said, patch(ink, stroke_width=2)))
    add_hover(plot, drawn, "@text")
    counts = {said: sum(one.said == said for _, one in known) for said in INKS}
    words = ", ".join(f"{said} at {count}" for said, count in counts.items() if count)
    words = f"Of {len(known)} settings, by their numbers in the table of verdicts: {words}"
    return figure(title, plot, words, switches, [_numbers(title, known)])


def _draw(plot: object, said: str, some: Sequence[tuple[str, Verdict]]) -> list[object]:
    """Draws the ratios of one outcome."""
    source = {
        "y": [number for number, _ in some],
        "x": [one.ratio.value for _, one in some],
        "low": [one.ratio.low for _, one in some],
        "high": [one.ratio.high for _, one in some],
        "text": [f"{number}: {one.words}" for number, one in some],
    }
    look = {"color": INKS[said], "name": said, "source": source}
    draw = getattr(plot, "segment"), getattr(plot, "scatter")  # noqa: B009
    draw[0]("low", "y", "high", "y", line_width=2, **look)
    return [draw[1]("x", "y", size=8, **look)]


def _numbers(title: str, known: Sequence[tuple[str, Verdict]]) -> Element:
    head = ["number", "ratio", "low", "high", "bootstrap, low", "bootstrap, high", "replicates"]
    rows = []
    for number, one in known:
        limits = (one.bootstrap.low, one.bootstrap.high) if one.bootstrap else ("", "")
        values = (one.ratio.value, one.ratio.low, one.ratio.high, *limits)
        cells = [short(value) if isinstance(value, float) else value for value in values]
        rows.append([number, *cells, str(one.ratio.replicates)])
    return table(title, head, rows)
