"""Optax over partitions: one optimizer for the whole model, of which each rank holds a part."""
