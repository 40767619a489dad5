"""Ranks of a launcher: what their environment says, how they start, end, and start again.

Rule 1: no module here imports JAX, MPI or NumPy: a supervisor and the doctor must run where those
cannot be imported.
Rule 2: nothing here knows of nodes or of training. A rank is a process with a number.

`environment`, `gpus`, `memory` and `paths` read the machine; `mpiexec` starts ranks; `supervise`
starts a job again, with `guard` (ends what a job leaves behind), `relay` (its output) and
`first_failure` (which rank failed first); `signals` and `last_words` are of a rank itself;
`witness` and `witness_process` tell whether a rank's process runs.
"""
