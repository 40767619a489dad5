"""Finds out whether jdaso works on a machine or a cluster, and reports what to fix.

Uses the standard library only, and so runs without JAX, NumPy, mpi4py or MPI. Anything that may
fail, hang or crash is tried in a process of its own (`_probe`), which records each step.

May live here: checks of software, devices and links, and advice. May not: repairs, and imports of
other packages at the top of a module, except `_base` and `_launch`.
"""
