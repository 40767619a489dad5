"""Start-up check: all nodes hold the same settings and parameters."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._exchange.collectives import require_own_devices
from .._exchange.placing import agree_on_shards
from .._jax.types import PyTree
from .._jax.world import spans_processes
from .._payload.layout import describe, text_of
from .._session import Session


def agree_on_init(
    session: Session,
    params: PyTree,
    inner_state: PyTree,
    facts: list[tuple[str, str]],
    about_inner: Sequence[tuple[str, str]] = (),
) -> None:
    """Raises unless all nodes have the same settings, tree, shapes, dtypes and parameter bits.

    A different inner optimizer is detected by the shapes of its state and by `about_inner`, not by
    its settings.

    If `params` are traced, the first update compares the bits.
    """
    if session.topology.num_ranks == 1:
        return
    leaves = describe(params)
    require_own_devices(session, params)
    tree = text_of(jax.tree.structure(params))
    facts = [*facts, *((f"leaf {leaf.path}", str(leaf)) for leaf in leaves)]
    facts.append(("the tree", tree if len(tree) < 2000 else str(hash_name(tree))))
    of_shards: dict[str, str] = {}  # ranks have different ones, and some have the same
    known = not any(isinstance(x, Tracer) for x in jax.tree.leaves(params))
    if known:
        for leaf, x in zip(leaves, jax.tree.leaves(params), strict=True):
            if is_in_parts(x):
                of_shards |= hash_shards(leaf.path, x)
            else:
                facts.append((f"bits of leaf {leaf.path}", hash_bits(x)))
    state = ", ".join(f"{leaf.path} {leaf}" for leaf in describe(inner_state))
    facts += [("the inner optimizer's state", state or "empty"), *about_inner]
    session.agree("initialise an optimizer", facts)
    if session.joined:
        agree_on_shards(session, "initialise an optimizer", params if known else ())
        _agree_on_bits(session, of_shards)


def hash_name(text: str) -> int:
    """A positive int32 for a text, the same in every process."""
    return zlib.crc32(text.encode()) & 0x7FFFFFFF


def _agree_on_bits(session: Session, mine: dict[str, str]) -> None:
    """Raises on all ranks unless all ranks that hold a shard, on any node, hold the same bits."""
    said = session.all_ranks.everyone("initialise an optimizer", json.dumps(mine))
    seen: dict[str, tuple[int, str]] = {}
    for rank, shards in enumerate(map(json.loads, said)):
        for name, bits in shards.items():
            first, others = seen.setdefault(name, (rank, bits))
            if bits != others:
                names = (session.topology.name(k) for k in (first, rank))
                raise session.control.error(
                    f"{' and '.join(names)} hold different bits of {name}. Give all nodes and "
                    "ranks the same values with jdaso.broadcast(tree, session)."
                )


def hash_shards(path: str, x: jax.Array) -> dict[str, str]:
    """Checksums of the shards of a leaf that this rank has, by their names."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return {
        f"leaf {path} from {[y.start or 0 for y in shard.index]}": hash_bits(shard.data)
        for shard in x.addressable_shards
    }


def is_in_parts(x: Any) -> bool:
    """Returns whether this rank has only parts of an array."""
    return spans_processes(x) and not x.is_fully_replicated


def hash_bits(x: Any) -> str:
    """A readable checksum of the bits of an array."""
    if jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return f"{zlib.crc32(np.ascontiguousarray(np.asarray(x)).tobytes()):08x}"
