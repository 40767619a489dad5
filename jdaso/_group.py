"""A communicator whose members go on without those that die: MPI's ULFM.

Whatever they do together ends with an agreement on whether it went well for all. Where it did not,
all revoke the communicator, which ends what is still under way on it, shrink it to the living, and
do the same again. So nobody is ahead of anybody, and who lives is known to all at the same place.

Open MPI does that under ``mpiexec --with-ft ulfm``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from ._poll import poll

Result = TypeVar("Result")

Checks = Callable[[], Callable[[], None]]
"""Begins a wait for the others; gives what is called meanwhile, and raises where it is in vain."""

_unfinished: list[Any] = []
"""Agreements that were left, with what MPI may yet write to."""


class Died(Exception):  # noqa: N818
    """A member has died, and what is under way may never end."""


class Group:
    """The living of a run, as one user of MPI knows them.

    Attributes:
        comm: an mpi4py communicator of them, which nobody else uses.
        living: their numbers as nodes, by their ranks in it.
    """

    def __init__(self, comm: Any, living: Sequence[int]):
        from mpi4py import MPI

        comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.comm, self.living = comm, tuple(living)

    def rank(self, node: int) -> int:
        """A living node's rank; of another that of the first."""
        return self.living.index(node) if node in self.living else 0

    def look(self) -> None:
        """Raises `Died` if a member has; MPI knows it only while it is asked for something."""
        if self._some_failed():
            raise Died

    def together(
        self,
        attempt: Callable[[], Result],
        checks: Checks,
        clean: Callable[[], None] = lambda: None,
    ) -> Result:
        """What an attempt gives, once one has gone well for all who are left then.

        Args:
            attempt: what all do; it is done anew after a death, and is to `look` while it waits.
            checks: for waits until all have come to agree, and to shrink.
            clean: called between the two, once nothing goes on of what the first began.
        """
        from mpi4py import MPI

        while True:
            result, well = None, True
            try:
                self.look()
                result = attempt()
            except Died:
                well = False
            except MPI.Exception as error:
                if not self._is_of_death(error):
                    raise
                well = False
            if self._agree(well, checks()):
                return result  # pyright: ignore[reportReturnType]
            self._shrink(checks(), clean)

    def _agree(self, well: bool, check: Callable[[], None]) -> bool:
        """Whether all say that it went well and, as far as MPI knows, live; the same on all."""
        from mpi4py import MPI

        flag, request = np.array([well], np.intc), None
        try:
            request = self.comm.Iagree(flag)
            poll(request.Test, check, np.inf)
        except MPI.Exception as error:
            if not self._is_of_death(error):
                raise
            return False
        except Exception:
            _unfinished.append((request, flag))
            raise
        return bool(flag[0])

    def _shrink(self, check: Callable[[], None], clean: Callable[[], None]) -> None:
        from mpi4py import MPI

        old = self.comm
        old.Revoke()
        clean()
        call = InThread(old.Shrink, "jdaso-shrink")
        poll(call.Test, check, np.inf)
        new = call.result()
        new.Set_errhandler(MPI.ERRORS_RETURN)
        ranks = MPI.Group.Translate_ranks(new.Get_group(), None, old.Get_group())
        self.comm, self.living = new, tuple(self.living[rank] for rank in ranks)

    def _is_of_death(self, error: Any) -> bool:
        from mpi4py import MPI

        of_death = (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED)
        if error.Get_error_class() in of_death or self.comm.Is_revoked():
            return True
        return self._some_failed()

    def _some_failed(self) -> bool:
        failed = self.comm.Get_failed()
        try:
            return failed.Get_size() > 0
        finally:
            failed.Free()


class InThread:
    """A call that may block and cannot be left, in a thread; asked like a request of MPI.

    Args:
        call: the call.
        name: of the thread.
    """

    def __init__(self, call: Callable[[], Any], name: str):
        self._call, self._done = call, threading.Event()
        self._found: Any = None
        self._error: Exception | None = None
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def Test(self) -> bool:  # noqa: N802
        """Returns whether it has ended."""
        return self._done.is_set()

    def result(self) -> Any:
        """Returns what it gave, or raises what it raised, once it has ended."""
        if self._error is not None:
            raise self._error
        return self._found

    def _run(self) -> None:
        try:
            self._found = self._call()
        except Exception as error:
            self._error = error
        self._done.set()
