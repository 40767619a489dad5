"""The ground: errors, the version, packages of extras, and the list of a package's public names.

Rule: no JAX, no MPI, and nothing of jdaso. All other packages may import these modules.
"""
