"""Checkpoints of a whole run: parameters, optimizer, and the exchange in flight.

May live here: the files of a save, when a step is saved, and how a state comes back on any number
of nodes; `_cutting` is the door for packages that save a state in parts. May not: MPI, and formulas
of an optimizer or an engine, which save and restore what they hold by themselves.
"""

from ._checkpoints import Checkpoints
from ._files import CheckpointError
from ._reader import Reader

__all__ = ["CheckpointError", "Checkpoints", "Reader"]
