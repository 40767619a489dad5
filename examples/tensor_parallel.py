"""Tensor parallelism by hand: a step inside ``shard_map`` over axes "data" and "model".

    export XLA_FLAGS=--xla_force_host_platform_device_count=4
    mpiexec -n 2 python examples/tensor_parallel.py

``local_axis`` names the axis whose devices hold copies, ``sharded`` gives the division of the
parameters over the other one.
"""

import zlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jdaso

STEPS, BATCH, WIDTH, HIDDEN = 120, 64, 16, 128
SPECS = {"up": P(None, "model"), "down": P("model"), "bias": P()}


def predict(params, x):
    """A device has some of the hidden units; their sum is the output."""
    hidden = jnp.tanh(x @ params["up"])
    return jax.lax.psum(hidden @ params["down"], "model") + params["bias"]


def loss_of(params, x, y):
    # Without check_vma, the gradient of a psum is that of all its devices' losses together.
    return jnp.mean((predict(params, x) - y) ** 2) / jax.lax.axis_size("model")


def main(session):
    devices = len(session.devices)
    shape = (devices // 2, 2) if devices % 2 == 0 else (devices, 1)
    about = {"devices": session.devices, "axis_types": (AxisType.Auto,) * 2}
    mesh = jax.make_mesh(shape, ("data", "model"), **about)
    random = np.random.default_rng(0)  # the same parameters and the same task on all nodes
    params = {
        "up": jnp.asarray(random.normal(size=(WIDTH, HIDDEN)) / WIDTH**0.5, jnp.float32),
        "down": jnp.asarray(random.normal(size=(HIDDEN, 1)) / HIDDEN, jnp.float32),
        "bias": jnp.zeros(1),
    }
    task = random.normal(size=(WIDTH, 1)) / WIDTH**0.5

    inner = optax.adam(1e-2)
    phases = jdaso.Phases(STEPS, warmup_steps=15, cooldown_steps=15, sync_every=4, delay=1)
    tx = jdaso.daso(inner, phases=phases, session=session, local_axis="data", sharded=SPECS)

    def step(params, opt_state, x, y):
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        grads["bias"] = jax.lax.psum(grads["bias"], "model")
        loss = jax.lax.pmean(jax.lax.psum(loss, "model"), "data")
        updates, opt_state = tx.update(grads, opt_state, params, value=loss)
        return optax.apply_updates(params, updates), opt_state, loss

    # Copies of the parameters are divided like these; all else is on all devices.
    state = jdaso.DasoState(**dict.fromkeys(jdaso.DasoState._fields, P()))
    of_inner = optax.tree_utils.tree_map_params(
        inner,
        lambda _, spec: spec,
        jax.eval_shape(inner.init, params),
        SPECS,
        transform_non_params=lambda _: P(),
    )
    state = state._replace(inner=of_inner)

    def mapped(function, given, gives):
        return jax.jit(
            jax.shard_map(function, mesh=mesh, in_specs=given, out_specs=gives, check_vma=False)
        )

    opt_state = mapped(tx.init, (SPECS,), state)(params)
    batch = P("data")
    step = mapped(step, (SPECS, state, batch, batch), (SPECS, state, P()))
    random, losses = np.random.default_rng(1 + session.node), []
    for _ in range(STEPS):
        x = random.normal(size=(BATCH, WIDTH)).astype(np.float32)
        y = np.tanh(3 * x @ task).astype(np.float32)
        params, opt_state, loss = step(params, opt_state, x, y)
        losses.append(loss)

    params = jdaso.finalize(params, opt_state, session)
    checksum = zlib.crc32(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params)))
    spec = params["up"].sharding.spec
    print(
        f"node {session.node}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, up is divided as {spec}, "
        f"parameters {checksum:08x}"
    )


if __name__ == "__main__":
    with jdaso.Session() as session:
        main(session)
