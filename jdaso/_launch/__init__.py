"""Ranks of a launcher: their environment, how they start and end, and how a job is restarted.

Rule 1: no module here imports JAX, MPI or NumPy, since a supervisor and the doctor must run where
those cannot be imported.
Rule 2: nothing here depends on nodes or on training. A rank is a process with a number.

`environment`, `gpus`, `memory` and `paths` read the machine; `mpiexec` starts ranks; `supervise`
restarts a job, with `asked` (signals to end), `hosts` (those that answer), `guard` (ends processes
that a job leaves behind; `guarded` starts it), `relay` and `look` (its output), `first_failure`
(listens to the ranks) and `failures` (the rank that failed first); `reports`, `signals` and
`last_words` run in the rank itself; `witness` and `witness_process` show whether a rank's process
runs.
"""
