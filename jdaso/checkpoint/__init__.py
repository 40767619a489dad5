"""Checkpoints of a whole run: parameters, optimizer, and the exchange in flight."""

from ._checkpoints import Checkpoints
from ._files import CheckpointError
from ._reader import Reader

__all__ = ["CheckpointError", "Checkpoints", "Reader"]
