"""Counts the way of one cycling update through the package, while JAX traces it.

    python tools/walk.py                          # one node
    mpiexec -n 2 python tools/walk.py             # two nodes: with start and merge

Printed are the modules that the update enters, its returns to a module that it had left, and the
most arguments of a call (``self`` left out). For another version, put its folder first on
PYTHONPATH.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import optax

import jdaso

PACKAGE = str(Path(jdaso.__file__).parent)


def walked(work):
    """Code objects of the package, in the order in which `work` calls them."""
    codes = []

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            codes.append(frame.f_code)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return codes


def arguments(code):
    """The number of parameters, without self."""
    count = code.co_argcount + code.co_kwonlyargcount
    return count - (code.co_varnames[:1] in (("self",), ("cls",)))


def returns(modules):
    """Entries to a module that was entered before, and left."""
    seen, before, count = set(), None, 0
    for module in modules:
        count += module != before and module in seen
        seen.add(module)
        before = module
    return count


def main():
    """Prints the counts."""
    with jdaso.Session() as session:
        phases = jdaso.Phases(100, warmup_steps=0, cooldown_steps=0, sync_every=4, delay=2)
        tx = jdaso.daso(optax.adam(1e-3), phases=phases, session=session)
        params = {"w": jnp.ones((64, 64)), "b": jnp.ones(64)}
        state = tx.init(params)
        grads = jax.tree.map(jnp.ones_like, params)

        def update(grads, state, params):
            return tx.update(grads, state, params, value=jnp.float32(1))

        jax.jit(update).lower(grads, state, params)  # opens channels
        codes = walked(lambda: jax.jit(lambda *args: update(*args)).lower(grads, state, params))
        modules = [code.co_filename.removeprefix(PACKAGE + "/") for code in codes]
        longest = max(codes, key=arguments)
        if session.node == 0:
            print(
                f"{session.num_nodes} nodes: {len(codes)} calls, {len(set(modules))} modules, "
                f"{returns(modules)} returns, most arguments {arguments(longest)} "
                f"({longest.co_qualname})"
            )


if __name__ == "__main__":
    main()
