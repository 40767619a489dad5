"""A plugin of pytest (``-p benchmarks.gpu._suite_plugin``): sessions may share a GPU."""

from benchmarks.gpu import _part

_part.share_gpus()
