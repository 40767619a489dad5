"""Optax over partitions: one optimizer of the whole model, of which each rank holds a part."""
