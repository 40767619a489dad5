"""JAX's debugging aids: annotations in its profiles, and its check for NaN."""

from __future__ import annotations

import jax

ANNOTATION = "jdaso clock"
"""The name of annotations made by `annotate`."""


def refuses_nan() -> bool:
    """Returns whether the user made JAX end programs in which a number is NaN."""
    return bool(getattr(jax.config, "jax_debug_nans", False))


def annotate(node: int, microseconds: float) -> None:
    """Adds a time to JAX's profile, if one is being recorded; costs little otherwise."""
    # Whole numbers: the profile keeps only six digits of others.
    with jax.profiler.TraceAnnotation(ANNOTATION, node=node, nanoseconds=round(1e3 * microseconds)):
        pass
