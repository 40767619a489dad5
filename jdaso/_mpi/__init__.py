"""MPI itself."""
