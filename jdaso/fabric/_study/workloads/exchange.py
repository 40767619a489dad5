"""jdaso's own exchange of n bytes of float32 numbers, from start to result, on a wire."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...._exchange.make import exchange_of, late_of
from ...._exchange.replicated import Common
from ...._payload.header import header
from ...._rules.merge import merge_of
from ...._session import Session
from ._given import give, given
from ._mpi import Mpi
from ._timing import measure


class TimedExchange:
    """An exchange that is started and waited for, both compiled."""

    def __init__(self, session: Session, wire: str, numbers: int):
        self._leaf = jax.random.normal(jax.random.key(session.node), (numbers,))
        exchange = exchange_of([self._leaf], session, wire=wire, owner=1)
        self._late = late_of(exchange, merge_of("paper"), list, checks=False)
        self._held = self._late.empty(1)
        self._step, self._start, self._wait = 0, jax.jit(self._starts), jax.jit(self._waits)
        if self._late.anchored:
            begin = jax.jit(lambda x: self._late.begin(self._held, (x,), jnp.int32(0))[1])
            jax.block_until_ready(begin(self._leaf))

    def _starts(self, leaf: jax.Array, step: jax.Array) -> Any:
        about = {"step": step, "before": step, "weight": None, "turn": step}
        return self._late.start(self._held, (leaf,), header(step=step), **about)[0]

    def _waits(self, ticket: Any) -> Any:
        about = ticket, jnp.int32(1), jnp.int32(0), Common((), False)
        found, _ = self._late.wait(self._held, *about)
        return found.change

    def __call__(self) -> Any:
        """Runs the exchange to its end."""
        ticket = self._start(self._leaf, np.int32(self._step))
        self._step += 1
        return jax.block_until_ready(self._wait(ticket))


def main() -> None:
    """Runs the program."""
    about = given()
    with Session(engine=about.engine) as session:  # pyright: ignore[reportArgumentType]
        exchange = TimedExchange(session, about.wire, about.numbers)
        exchange()  # compiles

        def crossed() -> int:
            return 2 * session.stats.bytes_sent  # as much comes in

        result = measure(Mpi(), exchange, 0, about.settings, sent=crossed)
        result["chosen"]["engine"] = session.engine
        if session.node == 0:
            give(result)


if __name__ == "__main__":
    main()
