"""JAX's help with finding faults: annotations of its profiles, and its check for NaN."""

from __future__ import annotations

import jax

ANNOTATION = "jdaso clock"
"""The name of annotations made by `annotate`."""


def refuses_nan() -> bool:
    """Returns whether the user made JAX end programs in which a number is NaN."""
    return bool(getattr(jax.config, "jax_debug_nans", False))


def annotate(node: int, microseconds: float) -> None:
    """Adds a time to the profile that JAX may be recording; costs little if it is not."""
    # Whole numbers: of others the profile keeps only six digits.
    with jax.profiler.TraceAnnotation(ANNOTATION, node=node, nanoseconds=round(1e3 * microseconds)):
        pass
