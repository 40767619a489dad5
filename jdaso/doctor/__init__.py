"""Finds out whether jdaso works on a machine or a cluster, and says what to mend.

Standard library only, so that it runs where JAX, NumPy, mpi4py or MPI do not. Whatever may fail,
hang or crash is tried in a process of its own (`_probe`), which says step by step how far it came.
"""
