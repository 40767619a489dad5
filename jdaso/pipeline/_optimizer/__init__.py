"""Optax over partitions: one optimizer for the whole model, of which each rank holds a part.

May live here: a transformation of all parameters, applied to those of one rank. May not: forward
and backward passes, and averages between replicas.
"""
