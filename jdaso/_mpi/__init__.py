"""MPI itself: starting it, who is there, requests, short messages, failures (ULFM), its end.

Rule 1: beside the engines and the doctor, only these modules import mpi4py, and none at its top:
without an MPI library a run of one node works.
Rule 2: every wait has a limit, which the caller gives or checks (`requests.poll`).
Rule 3: no JAX.
"""
