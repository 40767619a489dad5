"""Records of a run, written while it runs: JSON lines and TensorBoard, read by `jdaso.report`."""

from ._recorder import Recorder as Recorder
