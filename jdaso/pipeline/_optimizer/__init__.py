"""Optax over partitions."""
