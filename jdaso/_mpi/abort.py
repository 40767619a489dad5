"""Decides that the job ends with this process; `_nodes.exit` carries it out as the process ends."""

_state = {"ends": False}


def end_job() -> None:
    """The job ends with this process: MPI_Finalize would wait for a node that never comes."""
    _state["ends"] = True


def ends_job() -> bool:
    """Returns whether the job ends with this process."""
    return _state["ends"]


def spare_job() -> None:
    """Takes `end_job` back, in a forked process, which is no rank."""
    _state["ends"] = False
