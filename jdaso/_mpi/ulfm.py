"""A communicator whose members go on without failed ones: MPI's ULFM.

Every joint operation ends with an agreement on whether it succeeded on all members. If it did not,
all revoke the communicator, which ends everything in flight on it, shrink it to the survivors, and
repeat the operation. So no member is ahead of another, and all detect failures at the same point.

Open MPI supports ULFM under ``mpiexec --with-ft ulfm``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from .requests import finish, poll

Result = TypeVar("Result")

Checks = Callable[[], Callable[[], None]]
"""Begins a wait for the others; returns a check, which raises if the wait is in vain."""


class Died(Exception):  # noqa: N818
    """A member has failed, and operations in flight may never end."""


class Group:
    """The living nodes of a run, as seen by one user of MPI.

    Attributes:
        comm: an mpi4py communicator of them, which nothing else uses.
        living: their node numbers, by rank in `comm`.
    """

    def __init__(self, comm: Any, living: Sequence[int]):
        from mpi4py import MPI

        comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.comm, self.living = comm, tuple(living)

    def rank(self, node: int) -> int:
        """The rank of a living node; for a failed node the first rank."""
        return self.living.index(node) if node in self.living else 0

    def look(self) -> None:
        """Raises `Died` if a member has failed; MPI notices that only while it is polled."""
        if self._some_failed():
            raise Died

    def together(
        self,
        attempt: Callable[[], Result],
        checks: Checks,
        clean: Callable[[], None] = lambda: None,
    ) -> Result:
        """The result of an attempt, once it has succeeded on all members that have not failed.

        Args:
            attempt: the call of all, repeated after a failure; must call `look` while waiting.
            checks: for the waits until all are ready to agree, and to shrink.
            clean: called between two attempts, once nothing that the first began is in flight.
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
        """Returns whether all succeeded and none failed, as far as MPI reports; alike on all."""
        from mpi4py import MPI

        flag = np.array([well], np.intc)
        try:
            finish(self.comm.Iagree(flag), check, flag)
        except MPI.Exception as error:
            if not self._is_of_death(error):
                raise
            return False
        return bool(flag[0])

    def _shrink(self, check: Callable[[], None], clean: Callable[[], None]) -> None:
        from mpi4py import MPI

        old = self.comm
        old.Revoke()
        clean()
        call = InThread(old.Shrink, "jdaso-shrink")
        poll(call.Test, check)
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
    """Runs in a thread a call that may block and cannot be abandoned; polled like an MPI request.

    Args:
        call: the call.
        name: the thread's name.
    """

    def __init__(self, call: Callable[[], Any], name: str):
        self._call, self._done = call, threading.Event()
        self._found: Any = None
        self._error: Exception | None = None
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def Test(self) -> bool:  # noqa: N802
        """Returns whether the call has ended."""
        return self._done.is_set()

    def result(self) -> Any:
        """Returns the call's result, or raises its error, once it has ended."""
        if self._error is not None:
            raise self._error
        return self._found

    def _run(self) -> None:
        try:
            self._found = self._call()
        except Exception as error:
            self._error = error
        self._done.set()
