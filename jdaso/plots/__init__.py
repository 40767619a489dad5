"""Plots; the only importers of matplotlib (``pip install "jdaso[plots]"``)."""

from ._scaling import plot_scaling as plot_scaling
