"""Pictures of a study for papers: curves with their 5 to 95 % bands, and ratios with intervals."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..fabric._study.shown import Chart, MeasuredLaunch, Verdict, charts_of, named, slug

MARKS = ("o-", "s--", "^-.", "D:", "v-", "x--")
ENDINGS = (".svg", ".png")


def plot_study(
    studies: Mapping[str, Sequence[MeasuredLaunch]],
    verdicts: Mapping[str, Sequence[Verdict]],
    folder: str | Path,
) -> list[Path]:
    """Draws each chart of one or several studies, and the ratios of each: SVG and PNG.

    The same rows give the same SVG, byte for byte. Names that would be equal get a number.

    Args:
        studies: name -> launches.
        verdicts: name -> verdicts.
        folder: for the files; created if missing.

    Returns:
        The files written.

    Raises:
        ImportError: matplotlib is missing.
        OSError: the folder cannot be written to.
    """
    import matplotlib

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written, stems = [], set()
    with matplotlib.rc_context({"svg.hashsalt": "jdaso"}):
        for chart in charts_of(studies):
            path = folder / _unused(chart.key, stems)
            written += _draw(path, functools.partial(_curves, chart=chart))
        for name, known in _pairs(verdicts).items():
            height = 1.3 + 0.28 * len(known)
            draw = functools.partial(_ratios, known=known)
            written += _draw(folder / _unused(slug("ratios", name), stems), draw, height)
    return written


def _unused(stem: str, stems: set[str]) -> str:
    """Returns a name for a file that no other picture has, and adds it to `stems`."""
    names = itertools.chain([stem], (f"{stem}-{k}" for k in itertools.count(2)))
    found = next(name for name in names if name not in stems)
    stems.add(found)
    return found


def _pairs(verdicts: Mapping[str, Sequence[Verdict]]) -> dict[str, list[Verdict]]:
    """Returns the verdicts with an interval by study and pair of levels."""
    found: dict[str, list[Verdict]] = {}
    for study, some in verdicts.items():
        for one in some:
            if one.ratio.replicates > 1:
                found.setdefault(f"{study} {one.level} {one.reference}", []).append(one)
    return found


def _draw(path: Path, draw: Any, height: float = 4.0) -> list[Path]:
    """Writes one picture in each format."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, height), layout="constrained")
    axes = figure.subplots()
    draw(axes)
    axes.grid(alpha=0.3)
    files = [path.with_suffix(ending) for ending in ENDINGS]
    for file in files:
        metadata = {"Date": None} if file.suffix == ".svg" else {}
        figure.savefig(file, dpi=200, metadata=metadata)
    return files


def _curves(axes: Any, chart: Chart) -> None:
    for k, curve in enumerate(chart.curves):
        axes.plot(curve.x, curve.median, MARKS[k % len(MARKS)], color=f"C{k}", label=curve.label)
        axes.fill_between(curve.x, curve.low, curve.high, color=f"C{k}", alpha=0.2, linewidth=0)
    for axis in chart.log:
        getattr(axes, f"set_{axis}scale")("log")
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.set_title(chart.title, fontsize="medium")
    axes.legend(fontsize="small")


def _ratios(axes: Any, known: Sequence[Verdict]) -> None:
    margin = known[0].margin
    axes.axvspan(1 / (1 + margin), 1 + margin, color="0.88", label=f"margin {margin:.3g}")
    for k, one in enumerate(known):
        ratio = one.ratio
        sides = [[ratio.value - ratio.low], [ratio.high - ratio.value]]
        axes.errorbar([ratio.value], [k], xerr=sides, fmt="o", color="C0", capsize=3)
    axes.set_yticks(range(len(known)), [named(one.setting) for one in known], fontsize="small")
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.tick_params("x", which="both", labelsize="small", rotation=90)
    axes.set_title(known[0].pair, fontsize="medium")
    axes.set_xlabel(f"ratio of seconds, {1 - 2 * known[0].alpha:.0%} interval")
    axes.legend(fontsize="small")
