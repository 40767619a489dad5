"""Traces of runs: the events of each node of ``Session(trace=...)``, on one clock, for Perfetto.

May live here: the record of a node's events, its files, and how those of all nodes are joined. May
not: sessions, and decisions that follow from an event.
"""

from ._profiles import profiles_in as profiles_in
from ._read import NodeTrace as NodeTrace
from ._read import Trace as Trace
from ._read import TraceError as TraceError
from ._read import read as read
from ._write import merge as merge
from ._write import write as write
