"""Records of a run, written while it runs: JSON lines and TensorBoard, read by `jdaso.report`.

May live here: rows that a run writes, without waiting for a device. May not: reading and drawing
them (`jdaso.report`), and events of exchanges (`jdaso.traces`).
"""

from ._recorder import Recorder as Recorder
