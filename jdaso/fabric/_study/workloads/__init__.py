"""Workloads: the programs that the ranks of a cell run, one file per workload.

May live here: the programs, the transports that they call (`_mpi`: mpi4py; `_mpi4jax`: its
operations in compiled programs; `_mesh`: JAX's own processes over gloo or NCCL; `_torch`:
PyTorch's), the networks that are trained (`_networks`, a file each), their clock (`_timing`) and
the counters of interfaces (`_interfaces`).
May not: anything that the process of a study imports, except names: it goes on when a cell fails.

A program gets one argument, a JSON table of factors, settings and transport, and its node 0 prints
one line, ``jdaso-study {...}``, with the keys of `rows.Outcome` from `seconds` on (`_given`).
`_mpi` is the one place outside `_mpi`, `_engines` and `doctor` that imports mpi4py: it measures the
library itself, which a session would hide.
"""
