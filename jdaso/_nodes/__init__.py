"""The nodes of a run: what they agree on, which one is late, stuck or gone, and how all end.

Rule 1: whatever waits for another node waits by `wait.Wait`, which names the missing node and has
an end.
Rule 2: state is kept in small types that are given events, without threads or MPI (`known`,
`heartbeat`, `patience`, `loops`, `stopping`); `detector` owns the thread, `control` the
collectives, `mail` the messages of arrays.
Rule 3: no JAX: nodes can be played in one process, on a clock of their own (tests/lib/network.py).
"""
