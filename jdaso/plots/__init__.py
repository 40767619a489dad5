"""Plots; the only importers of matplotlib (``pip install "jdaso[plots]"``)."""

from ._scaling import plot_scaling as plot_scaling
from ._timeline import plot_timeline as plot_timeline
