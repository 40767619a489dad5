"""MPI itself: its start and end, its ranks, requests, short messages, and failures (ULFM).

Rule 1: beside the engines and the doctor only these modules import mpi4py, and none at its top:
without an MPI library a run of one node works.
Rule 2: every wait has a limit, which the caller gives or checks (`requests.poll`).
Rule 3: no JAX.
"""
