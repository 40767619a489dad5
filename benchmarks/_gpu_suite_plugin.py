"""A plugin of pytest: sessions of the tests may share a GPU (``-p _gpu_suite_plugin``)."""

import _gpu_part

_gpu_part.share_gpus()
