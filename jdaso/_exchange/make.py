"""Makes exchanges, for real or virtual nodes."""

from __future__ import annotations

from collections.abc import Callable

from .._jax.types import Leaves, LocalAxis, PyTree
from .._payload.layout import Leaf, chunk_bytes_of, describe, layout_of
from .._payload.placement import Placement
from .._payload.shards import Shards, parts_of
from .._payload.wire import Wire, wire_of
from .._rules.merge import Merge
from .._session import Session
from .exchange import CHUNK_BYTES, Exchange
from .host import HostExchange
from .late import Late
from .late_host import HostLate
from .late_virtual import VirtualLate
from .placing import undivided
from .sharded import ShardedExchange
from .virtual import VirtualExchange


def exchange_of(
    tree: PyTree,
    session: Session,
    *,
    wire: str | Wire = "float32",
    local_axis: LocalAxis = None,
    name: str = "",
    owner: int = 0,
    chunk_bytes: int = CHUNK_BYTES,
    raise_nonfinite: bool = True,
    placement: Placement | None = None,
    copies_alike: bool = True,
) -> Exchange:
    """Returns the exchange of trees like `tree`; `Exchange` explains the settings.

    Args:
        tree: arrays, or their shapes and dtypes.
        session: the nodes.
        wire: the format, or its name.
        local_axis: axis of the local devices.
        name: distinguishes optimizers of equal shapes.
        owner: the optimizer's number.
        chunk_bytes: maximum float32 bytes in a chunk.
        raise_nonfinite: whether numbers that are not finite are an error.
        placement: of the tree, if any leaf is divided over the node's devices.
        copies_alike: whether devices that hold copies of a leaf must hold equal ones.
    """
    wire, nodes = wire_of(wire), session.num_nodes
    leaves: tuple[Leaf, ...] = ()
    if placement is None and session.joined:
        placement = undivided(session, tree)
    if placement is not None:
        every = placement.leaves(tree)
        leaves = tuple(leaf for leaf in every if leaf.exchanged)
        tree = Shards(placement).leaves(every)
        placement = placement.of([leaf.division for leaf in leaves])
        if session.joined:
            shared = parts_of(placement, leaves)
            divisions = [part.division for part in shared]
            tree = Shards(placement.of(divisions)).leaves([part.exchanged for part in shared])
        elif placement.mesh is not None and not any(placement.divisions):
            placement = None  # inside jax.shard_map all devices call the host, whatever the leaves
    size = sum(leaf.size for leaf in describe(tree) if leaf.exchanged)
    each = chunk_bytes_of(4 * size, nodes, chunk_bytes)
    layout = layout_of(tree, nodes, each, wire.block)
    kind = HostExchange if placement is None else ShardedExchange
    kind = VirtualExchange if session.simulated else kind
    about = local_axis, name, owner, raise_nonfinite, placement, leaves, copies_alike
    return kind(session, layout, wire, *about)


def late_of(
    exchange: Exchange, rule: Merge, dress: Callable[[Leaves], PyTree], *, checks: bool
) -> Late:
    """Returns the late exchanges that an exchange is for; `Late` explains the settings."""
    kind = VirtualLate if exchange.session.simulated else HostLate
    return kind(exchange, rule, dress, checks)  # pyright: ignore[reportArgumentType]
