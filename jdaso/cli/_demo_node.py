"""One node of the demo: the program of each rank that ``python -m jdaso demo`` starts.

See `train` for how to train a Flax network with jdaso. Node 0 reports on standard output, one JSON
object per line after `MARK`; the process that started the ranks displays it.
"""

import json
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jdaso  # before the first use of a device: it may have to set up the CPU's thread pool

from ..data import batches
from ..metrics import Recorder
from ._fashion_mnist import ImageData

MARK = "@jdaso-demo "


class DemoSettings(NamedTuple):
    """Settings that are the same on all nodes of a demo."""

    data: str  # an .npz file with the fields of ImageData
    epochs: int
    num_nodes: int
    devices: int
    engine: str
    batch: int  # images per local device and step
    learning_rate: float = 2e-3
    sync_every: int = 4
    delay: int = 2
    seed: int = 0
    record: str | None = None  # each method's metrics get a folder in it


class Network(nn.Module):
    """Two strided convolutions and a wide layer: 0.8 million parameters, cheap on a CPU."""

    @nn.compact
    def __call__(self, images):
        x = (images[..., None].astype(jnp.float32) / 255 - 0.286) / 0.353
        x = nn.relu(nn.Conv(32, (5, 5), strides=2)(x))
        x = nn.relu(nn.Conv(64, (3, 3), strides=2)(x))
        x = nn.relu(nn.Dense(256)(x.reshape(len(x), -1)))
        return nn.Dense(10)(x)


def make_transformation(
    method: str, phases: jdaso.Phases, settings: DemoSettings, session: jdaso.Session
) -> optax.GradientTransformationExtraArgs:
    """Makes the transformation, the only line in which the two runs differ."""
    rate = optax.warmup_cosine_decay_schedule(
        0.0, settings.learning_rate, max(1, phases.total_steps // 10), phases.total_steps
    )
    inner = optax.adamw(rate, weight_decay=1e-3)
    if method == "synchronous":
        return jdaso.synchronous(inner, session=session, local_axis="local")
    return jdaso.daso(inner, phases=phases, session=session, local_axis="local")


def train(method: str, data: ImageData, settings: DemoSettings, session: jdaso.Session) -> dict:
    """Trains one network from start to finish; returns the result."""
    started = time.perf_counter()
    node_batch = settings.batch * len(session.devices)
    share = {"node": session.node, "num_nodes": session.num_nodes, "seed": settings.seed}
    steps_per_epoch = len(batches(len(data.train_labels), node_batch, epoch=0, **share))
    total_steps = settings.epochs * steps_per_epoch

    network = Network()
    phases = jdaso.Phases(
        total_steps=total_steps,
        warmup_steps=total_steps // 10,
        cooldown_steps=total_steps // 10,
        sync_every=settings.sync_every,
        delay=settings.delay,
    )
    transformation = make_transformation(method, phases, settings, session)
    params = network.init(jax.random.key(settings.seed), jnp.zeros((1, 28, 28), jnp.uint8))
    params = jdaso.broadcast(params, session)
    opt_state = transformation.init(params)

    def step(params, opt_state, images, labels):  # runs once on each local device
        def loss_of(params):
            logits = network.apply(params, images)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()  # pyright: ignore

        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, opt_state = transformation.update(grads, opt_state, params, value=loss)
        return optax.apply_updates(params, updates), opt_state, jax.lax.pmean(loss, "local")

    split = NamedSharding(session.mesh, P("local"))
    whole = NamedSharding(session.mesh, P())
    params, opt_state = jax.device_put((params, opt_state), whole)
    step = jax.jit(
        jax.shard_map(
            step,
            mesh=session.mesh,
            in_specs=(P(), P(), P("local"), P("local")),
            out_specs=(P(), P(), P()),
            check_vma=False,
        ),
        donate_argnums=(0, 1),
    )

    def epoch_batches(epoch: int) -> Iterator:
        for chosen in batches(len(data.train_labels), node_batch, epoch=epoch, **share):
            yield jax.device_put((data.train_images[chosen], data.train_labels[chosen]), split)

    step = step.lower(params, opt_state, *next(epoch_batches(0))).compile()
    jdaso.mean(jnp.zeros(()), session)  # all nodes begin together
    before, begin, reported = session.stats, time.perf_counter(), 0.0
    images_per_step = node_batch * session.num_nodes

    predict = jax.jit(lambda params, images: network.apply(params, images).argmax(-1))  # pyright: ignore
    recorder = None
    if settings.record is not None:
        about = {"images per device and step": settings.batch, "epochs": settings.epochs}
        recorder = Recorder(Path(settings.record, method), session, settings=about)
    losses: deque = deque()
    done = 0
    for epoch in range(settings.epochs):
        for images, labels in epoch_batches(epoch):
            params, opt_state, loss = step(params, opt_state, images, labels)
            done += 1
            if recorder is not None:
                more = {}
                if session.node == 0 and done % max(steps_per_epoch // 4, 1) == 0:
                    more["accuracy"] = share_right(predict, params, data)
                recorder.step(done, opt_state, loss=loss, **more)
            losses.append(loss)
            if len(losses) > 2:  # stay two steps ahead of the device, not the whole epoch
                last_loss = float(losses.popleft())
                now = time.perf_counter()
                if session.node == 0 and now - reported > 0.5:
                    reported = now
                    phase = getattr(opt_state, "phase", None)  # the synchronous state has none
                    report(
                        "progress",
                        method=method,
                        step=done,
                        total_steps=total_steps,
                        phase="blocking" if phase is None else phases.name(done - 1),
                        sync_every=1 if phase is None else int(phase.sync_every),
                        delay=0 if phase is None else int(phase.delay),
                        loss=last_loss,
                        images_per_second=done * images_per_step / (now - begin),
                        hidden_share=hidden_share(session),
                    )
    params = jax.block_until_ready(jdaso.finalize(params, opt_state, session))
    seconds = time.perf_counter() - begin
    if recorder is not None:
        recorder.close()
    stats = session.stats
    return {
        "method": method,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        "test_accuracy": accuracy(predict, params, data, session),
        "nodes_equal": nodes_equal(params, session),
        "seconds": seconds,
        "setup_seconds": begin - started,
        "steps": total_steps,
        "images_per_second": total_steps * images_per_step / seconds,
        "bytes_per_step": (stats.bytes_sent - before.bytes_sent) / total_steps,
        "hidden_share": hidden_share_of_all(session),
    }


def hidden_share(session: jdaso.Session) -> float:
    """Returns this node's share, as in `jdaso.Stats`; 0 if every step waits for a mean."""
    return session.stats.hidden_share if session.stats.exchanges else 0.0


def hidden_share_of_all(session: jdaso.Session) -> float:
    """Returns the same share over the time of all nodes."""
    stats = session.stats
    about = jnp.array([stats.exchange_seconds, stats.lost_seconds])
    took, lost = np.asarray(jdaso.mean(about, session), float)
    return min(max(1 - lost / took, 0.0), 1.0) if took > 0 else 0.0


def accuracy(predict, params, data: ImageData, session) -> float:
    """Returns the test accuracy; every node evaluates its part of the images."""
    params = jax.device_get(params)
    images = data.test_images[session.node :: session.num_nodes]
    labels = data.test_labels[session.node :: session.num_nodes]
    right = sum(
        int((np.asarray(predict(params, images[i : i + 1000])) == labels[i : i + 1000]).sum())
        for i in range(0, len(images), 1000)
    )
    mean_right = jdaso.mean(jnp.asarray(right, jnp.float32), session)
    return float(mean_right) * session.num_nodes / len(data.test_labels)


def share_right(predict, params, data: ImageData, most: int = 1000) -> float:
    """Returns the accuracy on the first test images, for the record; only on this node."""
    found = predict(jax.device_get(params), data.test_images[:most])
    return float((np.asarray(found) == data.test_labels[:most]).mean())


def nodes_equal(params, session) -> bool:
    """Returns whether all nodes hold node 0's parameters, bit for bit."""
    params = jax.device_get(params)
    first = jax.device_get(jdaso.broadcast(params, session))
    equal = all(
        np.array_equal(mine, theirs, equal_nan=True)
        for mine, theirs in zip(jax.tree.leaves(params), jax.tree.leaves(first), strict=True)
    )
    return float(jdaso.mean(jnp.asarray(equal, jnp.float32), session)) == 1.0


def report(event: str, **fields) -> None:
    """Reports an event to the process that started the ranks."""
    print(MARK + json.dumps({"event": event, **fields}), flush=True)


def main(settings: DemoSettings) -> None:
    """Trains with each method in turn, each in a session of its own."""
    with np.load(settings.data) as file:
        data = ImageData(*(file[name] for name in ImageData._fields))
    for method in ("daso", "synchronous"):
        trace = None if settings.record is None else Path(settings.record, method)
        with jdaso.Session(engine=settings.engine, trace=trace) as session:
            if session.num_nodes != settings.num_nodes:
                raise RuntimeError(
                    f"{settings.num_nodes} ranks were started but each sees "
                    f"{session.num_nodes}: mpiexec belongs to another MPI than the one mpi4py "
                    "loads. Use the mpiexec of this environment, or reinstall mpi4py and mpi4jax."
                )
            result = train(method, data, settings, session)
            if session.node == 0:
                report("result", **result)


if __name__ == "__main__":
    main(DemoSettings(**json.loads(Path(sys.argv[1]).read_text())))
