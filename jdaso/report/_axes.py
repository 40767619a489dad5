"""Lines, the axes that hold them, and round numbers for the axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ._series import Thinned, thin

WIDTH, HEIGHT = 340, 230
LEFT, RIGHT, TOP, BOTTOM = 66, 332, 10, 188


class Line(NamedTuple):
    """One line of a chart.

    Attributes:
        label: for the legend.
        style: a number that gives its colour and dash.
        points: its points; a pale band lies between the least and the largest.
    """

    label: str
    style: int
    points: Thinned


class Axes(NamedTuple):
    """The ranges and names of a chart's axes; the upward axis may be logarithmic."""

    x_label: str
    y_label: str
    x: tuple[float, float]
    y: tuple[float, float]
    log: bool = False

    def at_x(self, value: float) -> float:
        """Returns the horizontal place of a value."""
        return LEFT + (value - self.x[0]) / (self.x[1] - self.x[0]) * (RIGHT - LEFT)

    def at_y(self, value: float) -> float:
        """Returns the vertical place of a value."""
        low, high = self.y
        if self.log:
            value, low, high = math.log10(value), math.log10(low), math.log10(high)
        return BOTTOM - (value - low) / (high - low) * (BOTTOM - TOP)

    def y_ticks(self) -> list[float]:
        """Returns the places of the grid."""
        return log_ticks(*self.y) if self.log else ticks(*self.y)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Returns at most `most` round numbers in low..high, 1, 2 or 5 times a power of ten apart.

    >>> ticks(0.0, 97.0)
    [0.0, 20.0, 40.0, 60.0, 80.0]
    """
    rough = (high - low) / max(most - 1, 1)
    if not rough > 0 or not math.isfinite(rough):
        return [low]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{k * step:.12g}") for k in range(first, last + 1)]


def log_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Returns 1, 2 and 5 times the powers of ten within low..high; fewer if these are too many.

    >>> log_ticks(0.15, 3.0)
    [0.2, 0.5, 1.0, 2.0]
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    powers = [float(f"1e{power}") for power in range(first, last + 1)]
    fine = [m * power for power in powers for m in (1, 2, 5) if low <= m * power <= high]
    coarse = [power for power in powers if low <= power <= high]
    return fine if len(fine) <= most else coarse[:: math.ceil(len(coarse) / most)]


def short(value: float) -> str:
    """Formats a number for an axis or a table: 0.25, 1200, 3.4 M.

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


def padded(values: Sequence[float], *, from_zero: bool = False) -> tuple[float, float]:
    """Returns a range that holds all numbers, with space above and below."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return 0.0, 1.0
    low, high = min(finite), max(finite)
    if from_zero:
        low = min(low, 0.0)
    room = (high - low) * 0.04 or abs(high) * 0.1 or 1.0
    return low if from_zero else low - room, high + room


def scalar_axes(lines: Sequence[Line], x_label: str, y_label: str) -> Axes:
    """Returns axes that hold all lines; logarithmic if numbers are positive and far apart."""
    low = min(float(line.points.low.min()) for line in lines)
    high = max(float(line.points.high.max()) for line in lines)
    axes = axes_of(lines, x_label, y_label)
    if not low > 0 or not 10 <= high / low < math.inf:
        return axes
    room = (high / low) ** 0.04
    return axes._replace(y=(low / room, high * room), log=True, y_label=f"{y_label}, log scale")


def axes_of(lines: Sequence[Line], x_label: str, y_label: str, *, from_zero: bool = False) -> Axes:
    """Returns axes that hold all lines."""
    x = [value for line in lines for value in (line.points.x.min(), line.points.x.max())]
    y = [v for line in lines for v in (line.points.low.min(), line.points.high.max())]
    low, high = min(x), max(x)
    across = low, high if high > low else low + 1
    return Axes(x_label, y_label, across, padded(y, from_zero=from_zero))


def lines_of(data: Sequence[tuple[str, int, np.ndarray, np.ndarray]]) -> list[Line]:
    """Makes lines from (label, style, x, y), without those that have no number."""
    made = [Line(label, style, thin(x, y)) for label, style, x, y in data]
    return [line for line in made if line.points.x.size]
