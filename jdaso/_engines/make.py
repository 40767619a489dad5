"""Creates engines by name."""

from __future__ import annotations

from collections.abc import Callable

from .._mpi.ulfm import Group
from .._payload.wire import Wire
from .base import InTurn, Reducer, SumRows
from .instant import Instant
from .passes import passes_of

ENGINES = ("mpi4py", "mpi4jax", "simulated", "instant")


def check_engine(name: str, num_nodes: int) -> None:
    """Raises if the engine cannot work here.

    Raises:
        ImportError: mpi4jax is missing, or was built for another MPI.
    """
    if name == "mpi4jax" and num_nodes > 1:
        from .mpi4jax import import_mpi4jax

        import_mpi4jax()


def make_reducer(
    engine: str,
    wire: Wire,
    nodes: int,
    duplicate: Callable[[], Group],
    *,
    check: Callable[[], None],
    limit_seconds: float,
    bytes_per_second: Callable[[], float],
    survives: bool,
) -> Reducer:
    """Creates an engine's reducer, over communicators that nothing else uses.

    Args:
        engine: its name.
        wire: the format of the rows.
        nodes: the number of rows.
        duplicate: returns a communicator of all living nodes; a collective call.
        check: called while waiting; raises if the wait cannot succeed.
        limit_seconds: the longest wait.
        bytes_per_second: bandwidth of the slowest link; a collective call, with the same result on
            all nodes.
        survives: whether the run goes on when a node fails.
    """
    sums = passes_of(wire).total
    if engine == "instant":
        return InTurn(Instant(wire, len(duplicate().living)), limit_seconds)
    if engine == "mpi4jax":
        return _mpi4jax_reducer(wire, duplicate, sums, check, limit_seconds, bytes_per_second())
    if survives:
        from .surviving import SurvivingReducer

        return SurvivingReducer(duplicate(), nodes, wire, sums, check, limit_seconds)
    from .mpi4py import Mpi4pyReducer

    comms = duplicate().comm, duplicate().comm
    return Mpi4pyReducer(comms, wire, sums, check, limit_seconds, bytes_per_second())


def _mpi4jax_reducer(
    wire: Wire,
    duplicate: Callable[[], Group],
    sums: SumRows,
    check: Callable[[], None],
    limit_seconds: float,
    bytes_per_second: float,
) -> Reducer:
    """Creates the reducer of engine ``mpi4jax`` for links of that speed."""
    from .mpi4py import SLOW_LINK

    if bytes_per_second < SLOW_LINK:
        from .lanes import LanesReducer

        comms = duplicate().comm, duplicate().comm
        return LanesReducer(comms, wire, sums, check, limit_seconds)
    from .mpi4jax import Mpi4jaxReduce

    return InTurn(Mpi4jaxReduce(duplicate().comm, wire, sums), limit_seconds)
