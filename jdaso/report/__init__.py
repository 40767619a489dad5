"""One HTML page about runs that `jdaso.metrics` recorded; needs no network to be read.

May live here: reading records, and the page with its charts, the only ones by Bokeh. May not:
recording (`jdaso.metrics`), and the answers of a study, which `fabric._study.shown` gives.
"""

from ._joined import Node as Node
from ._page import make_page as make_page
from ._rows import Mark as Mark
from ._runs import ReportError as ReportError
from ._runs import Run as Run
from ._runs import counted as counted
from ._runs import read_run as read_run
from ._series import Thinned as Thinned
from ._series import thin as thin
