"""Memory that JAX takes without a copy, and that the host's numbers lie in it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdaso._engines.staging import Staging, StagingMemory
from jdaso._jax.ffi import aligned
from jdaso._payload.layout import layout_of
from jdaso._payload.wire import WIRES


@pytest.mark.parametrize("shape", [0, 1, 1000, (3, 7), (4, 100_000)])
@pytest.mark.parametrize("dtype", [np.float32, np.uint16, np.uint8])
def test_zeros_that_jax_does_not_copy(shape, dtype):
    array = aligned.zeros(shape, dtype)
    like = np.zeros(shape, dtype)
    assert array.shape == like.shape and array.dtype == like.dtype and not array.any()
    assert array.flags.c_contiguous and array.flags.writeable
    if array.size:
        assert array.ctypes.data % aligned.ALIGNMENT == 0
        on_device = jax.device_put(array, jax.devices("cpu")[0])
        assert on_device.unsafe_buffer_pointer() == array.ctypes.data


@pytest.mark.parametrize("nodes", [2, 3, 5])
def test_every_chunk_of_an_exchange_is_so(nodes):
    """A large array of `numpy.zeros` begins 16 bytes behind a page."""
    layout = layout_of([jnp.zeros(100_001), jnp.zeros(7)], nodes, 2**16)
    assert len(layout.widths) > 2
    places = [StagingMemory(layout, WIRES["float32"]), StagingMemory(layout, WIRES["bfloat16"])]
    rows = [row for place in places for row in place.rows]
    staging = Staging(layout, WIRES["int4"])
    rows += map(staging.rows(), range(len(layout.widths)))
    assert all(row.ctypes.data % aligned.ALIGNMENT == 0 for row in rows)
