"""What a run did, written while it runs: JSON lines and TensorBoard, read by `jdaso.report`."""

from ._recorder import Recorder as Recorder
