"""The nodes of a run: how they agree, detect late, stuck or failed nodes, and end together.

Rule 1: code that waits for another node uses `wait.Wait`, which names the missing node and ends.
Rule 2: state is kept in small types that are given events, without threads or MPI (`known`,
`heartbeat`, `patience`, `loops`, `stopping`); `detector` owns the thread, `control` the
collectives, `mail` the messages of arrays.
Rule 3: no JAX: tests simulate nodes in one process on a clock of their own (tests/lib/network.py).
"""
