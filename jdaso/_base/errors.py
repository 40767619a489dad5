"""The errors that a run raises, and the exit status of a run that stopped on request; no JAX."""

from __future__ import annotations

STOPPED_STATUS = 75
"""Exit status of a program that saved and stopped on request: EX_TEMPFAIL, start it again."""


class Stopped(SystemExit):
    """All nodes stop together, at the same step, because one was asked to; their state is saved.

    The program ends with status 75 (EX_TEMPFAIL): start it again to go on.
    """

    __module__ = "jdaso"

    def __init__(self):
        super().__init__(STOPPED_STATUS)


class NodeError(RuntimeError):
    """Something is wrong with, or between, the nodes of a run.

    The text begins with the node that reports the error, ``[node 3 of 8, host n02, step 120]``,
    and states the problem, the values given, and the remedy. Raised inside a compiled step, the
    error surfaces as ``jax.errors.JaxRuntimeError`` (from JAX's fast dispatch, as ``ValueError``)
    with the same text.
    """

    __module__ = "jdaso"


def summary(error: BaseException) -> str:
    """The text of an exception, without the traceback that JAX puts into its own errors."""
    lines = str(error).splitlines()
    frames = [i for i, line in enumerate(lines) if line.lstrip().startswith("File ")]
    if not frames:
        return f"{type(error).__name__}: {error}"
    return " ".join(line for line in lines[frames[-1] + 1 :] if not line.startswith(("-", "For ")))
