"""Types, devices and capabilities of this namespace, as the array API standard requires them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.dtypes import canonicalize_dtype

from ._dtypes import KINDS


class Info:
    """The answers of `__array_namespace_info__`."""

    def capabilities(self) -> dict[str, Any]:
        """Returns which of the standard's optional parts are supported: all."""
        named = "boolean indexing", "data-dependent shapes"
        return {**dict.fromkeys(named, True), "max dimensions": 64}

    def default_device(self) -> Any:
        """Returns the device of a new block: this node's first one, or JAX's default."""
        return jnp.zeros(()).device

    def devices(self) -> tuple[Any, ...]:
        """Returns the devices of this node."""
        return tuple(jax.local_devices())

    def default_dtypes(self, *, device: Any = None) -> dict[str, np.dtype]:
        """Returns the types of new arrays: of 64 bits with `jax_enable_x64`, else of 32."""
        kinds = {"real floating": float, "complex floating": complex, "integral": int}
        found = {name: jnp.result_type(kind) for name, kind in kinds.items()}
        return {**found, "indexing": jnp.result_type(int)}

    def dtypes(
        self, *, device: Any = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, np.dtype]:
        """Returns the standard's types that JAX's setting allows, by name.

        Args:
            device: all have the same types.
            kind: a kind as in `isdtype`, or several; None: all.
        """
        kinds = tuple(KINDS) if kind is None else (kind,) if isinstance(kind, str) else kind
        names = [name for one in kinds for name in KINDS[one]]
        return {name: np.dtype(name) for name in names if canonicalize_dtype(name) == name}


def __array_namespace_info__() -> Info:  # noqa: N807
    """Returns the types, devices and capabilities of this namespace."""
    return Info()
