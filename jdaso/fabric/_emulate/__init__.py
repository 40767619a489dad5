"""Emulated hosts on this machine, with links of a given rate between them.

May live here: network namespaces, their links, and the removal of ended clusters' remains. May
not: JAX, MPI, and the programs that run on the hosts.
"""
