"""Arrays of a pipeline on the devices of one node."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..._session import Session
from .given import own_copy


class OwnDevices:
    """The devices of this node.

    Args:
        session: the nodes.
    """

    def __init__(self, session: Session):
        self._session = session

    def put(self, tree: Any) -> Any:
        """Puts arrays on the devices, the same on each."""
        if len(self._session.devices) == 1:
            return jax.device_put(tree, self._session.devices[0])
        return jax.device_put(tree, self._sharding(jax.sharding.PartitionSpec()))

    def put_copy(self, array: Any) -> jax.Array:
        """Puts an array on the devices; the caller may change a NumPy array afterwards."""
        return self.put(own_copy(array))

    def put_samples(self, array: Any, size: int) -> jax.Array:
        """Puts an array on the devices, its `size` samples shared out if possible."""
        devices, shape = len(self._session.devices), np.shape(array)
        if devices == 1 or not shape or shape[0] != size or size % devices:
            return self.put(array)
        return jax.device_put(array, self._sharding(jax.sharding.PartitionSpec("local")))

    def _sharding(self, spec: jax.sharding.PartitionSpec) -> jax.sharding.Sharding:
        return jax.sharding.NamedSharding(self._session.mesh, spec)
