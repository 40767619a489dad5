"""A model that no device of a node holds whole (FSDP): Flax linen with logical axes, plain ``jit``.

    export XLA_FLAGS=--xla_force_host_platform_device_count=4
    mpiexec -n 2 python examples/fsdp.py

Parameters and optimizer state are divided over the node's devices. Each shard is exchanged with the
same shard of the other nodes; none is ever gathered for this. With two ranks per node:

    export XLA_FLAGS=--xla_force_host_platform_device_count=2
    mpiexec -n 4 python examples/fsdp.py 2
"""

import sys
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jdaso

STEPS, BATCH, LENGTH, WIDTH, WORDS, LAYERS = 150, 64, 16, 64, 32, 2
RULES = (("embed", "local"), ("hidden", None), ("words", None))  # logical axis -> axis of the mesh


def dense(features, *axes):
    kernel = nn.with_logical_partitioning(nn.initializers.lecun_normal(), axes)
    return nn.Dense(features, use_bias=False, kernel_init=kernel)


class Mixer(nn.Module):
    """A small language model: each word sees the mean of the words before it."""

    @nn.compact
    def __call__(self, words):  # [batch, length] -> logits [batch, length, WORDS]
        table = nn.with_logical_partitioning(nn.initializers.normal(1.0), ("words", "embed"))
        x = nn.Embed(WORDS, WIDTH, embedding_init=table)(words)
        count = jnp.arange(1, words.shape[1] + 1)[:, None]
        for _ in range(LAYERS):
            seen = jnp.concatenate([x, jnp.cumsum(x, axis=1) / count], axis=-1)
            hidden = nn.gelu(dense(4 * WIDTH, "embed", "hidden")(seen))
            x = x + dense(WIDTH, "hidden", "embed")(hidden)
        return dense(WORDS, "embed", "words")(nn.LayerNorm()(x))


def sentences(random, count):
    """Sequences in which each word follows from the word before it, most of the time."""
    found = np.zeros((count, LENGTH + 1), np.int32)
    found[:, 0] = random.integers(WORDS, size=count)
    for k in range(LENGTH):
        follows = (5 * found[:, k] + 3) % WORDS
        found[:, k + 1] = np.where(random.random(count) < 0.9, follows, found[:, 0])
    return found


def main(session):
    mesh, model = session.mesh, Mixer()
    example = jnp.zeros((1, LENGTH), jnp.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), example)
    shardings = nn.logical_to_mesh_sharding(nn.get_partition_spec(shapes), mesh, RULES)
    init = jax.jit(lambda key: nn.unbox(model.init(key, example)), out_shardings=shardings)
    params = init(jax.random.key(0))  # made in parts; the same on all nodes

    phases = jdaso.Phases(STEPS, warmup_steps=20, cooldown_steps=15, sync_every=4, delay=1)
    tx = jdaso.daso(optax.adamw(3e-3), phases=phases, session=session, wire="bfloat16")
    opt_state = tx.init(params)  # sees how the parameters are divided

    def loss_of(params, words):
        logits = model.apply(params, words[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, words[:, 1:]).mean()

    def step(params, opt_state, words):
        loss, grads = jax.value_and_grad(loss_of)(params, words)
        updates, opt_state = tx.update(grads, opt_state, params, value=loss)
        return optax.apply_updates(params, updates), opt_state, loss

    step = jax.jit(step, donate_argnums=(0, 1))
    random, batches = np.random.default_rng(session.node), NamedSharding(mesh, P("local"))
    losses = []
    for _ in range(STEPS):
        words = sentences(random, BATCH)  # each device is given its part
        words = jax.make_array_from_callback(words.shape, batches, words.__getitem__)
        params, opt_state, loss = step(params, opt_state, words)
        losses.append(loss)

    params = jdaso.finalize(params, opt_state, session)  # still divided
    kernel = params["params"]["Dense_0"]["kernel"]
    shard = kernel.addressable_shards[0].data.shape
    whole = jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, P()))(params)  # for inspection
    checksum = zlib.crc32(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(whole)))
    print(
        f"node {session.node}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, each device holds "
        f"{shard} of {kernel.shape}, parameters {checksum:08x}"
    )


if __name__ == "__main__":
    with jdaso.Session(ranks_per_node=int(sys.argv[1]) if sys.argv[1:] else 1) as session:
        main(session)
