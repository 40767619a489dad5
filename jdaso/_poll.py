"""Asks for something again and again, up to a limit."""

from __future__ import annotations

import time
from collections.abc import Callable


def poll(
    done: Callable[[], bool],
    check: Callable[[], None],
    limit_seconds: float,
    most_pause: float = 2e-3,
) -> bool:
    """Asks `done` until it says yes, ever less often; False when the limit has passed.

    `check` is called on the way and may raise. MPI moves bytes only when it is asked: a pause of
    more than `most_pause` seconds would slow it down.
    """
    begin, pause = time.perf_counter(), 1e-5
    while not done():
        if time.perf_counter() - begin > limit_seconds:
            return False
        check()
        time.sleep(pause)
        pause = min(pause * 2, most_pause)
    return True
