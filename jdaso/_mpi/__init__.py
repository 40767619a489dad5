"""MPI itself: its start and end, its ranks, requests, short messages, and failures (ULFM).

Rule 1: beside the engines and the doctor only these modules import mpi4py, and none at its top:
without an MPI library a run of one node works.
Rule 2: whatever polls MPI calls `requests.poll` or `requests.finish`: one growing pause, and an end
by the limit or the check that the caller gives. Only an engine may have a loop of its own.
Rule 3: no JAX.
"""
