"""Plots; the only importers of matplotlib (``pip install "jdaso[plots]"``).

May live here: functions that draw what they are given into a file. May not: measuring and
computing what is drawn. Studies and models of `jdaso.fabric` do that (`fabric._study.shown` is the
door); plans come as arguments.
"""

from ._plan import StageBar as StageBar
from ._plan import draw_plan as draw_plan
from ._plan import draw_schedule as draw_schedule
from ._plan import draw_stages as draw_stages
from ._scaling import plot_scaling as plot_scaling
from ._study import plot_study as plot_study
from ._timeline import plot_timeline as plot_timeline
