"""MPI itself: its start and end, its ranks, requests, short messages, and failures (ULFM).

Rule 1: apart from the engines, the doctor and programs that studies start, only these modules
import mpi4py, and none at its top, so that a run of one node works without an MPI library.
Rule 2: code that polls MPI calls `requests.poll` or `requests.finish`: one growing pause, and an
end by the limit or the check that the caller gives. Only an engine may have a loop of its own.
Rule 3: no JAX.
"""
