"""Errors that exchanges report: raised inside a compiled step, and from there to the program."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from .._jax.host_call import STEP_ERRORS
from .._nodes.compare import Comparison
from .._nodes.control import Control
from .._payload.words import FAILED, STATUS, STEP


class Reports:
    """Raises errors that the headers of exchanges report.

    Args:
        control: the nodes.
        node: this node's number.
        virtual: whether the nodes are virtual.
    """

    def __init__(self, control: Control, node: int, *, virtual: bool):
        self._control, self._node = control, node
        self._comparison = Comparison(control, virtual=virtual)
        self._reported: Exception | None = None

    def check(
        self,
        heads: np.ndarray,
        leaves: tuple[str, ...],
        common: tuple[str, ...] = (),
        prints: np.ndarray | None = None,
    ) -> None:
        """Raises the error that the headers of an exchange report, if any; the same on all nodes.

        Args:
            heads: headers of all nodes.
            leaves: paths of the leaves that were exchanged.
            common: paths of the leaves that must be replicated.
            prints: checksums of those leaves; with virtual nodes, of all nodes.
        """
        step = int(heads[self._node % len(heads), STEP])
        error = None
        if (heads[:, STATUS] == FAILED).any():
            error = self._control.broken or self._why_failed(heads, step)
        elif (text := self._comparison.complaint(heads, leaves, common, prints)) is not None:
            error = self._control.error(text, step)
        if error is not None:
            self._reported = error
            raise error

    def _why_failed(self, heads: np.ndarray, step: int) -> Exception:
        """The error of this node, or the names of the nodes on which an exchange failed."""
        failed = np.flatnonzero(heads[:, STATUS] == FAILED).tolist()
        if self._node in failed and self._control.refused is not None:
            return self._control.refused
        names = self._control.known.name(failed)
        return self._control.error(f"An exchange failed on {names}; see the log there.", step)

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Re-raises errors of `check` from programs run inside it, without JAX's wrapping."""
        self._reported = None
        try:
            yield
        except STEP_ERRORS as error:
            if self._reported is None:
                raise
            raise self._reported from error
