"""Checkpoints of a whole run: parameters, optimizer, and the exchange in flight."""

from ._checkpoints import Checkpoints
from ._files import CheckpointError

__all__ = ["CheckpointError", "Checkpoints"]
