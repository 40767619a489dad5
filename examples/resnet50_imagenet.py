"""ResNet-50 on ImageNet with the recipe of HeAT's DASO example.

    mpiexec -n NODES python examples/resnet50_imagenet.py --data IMAGENET/train --folder RUN

Needs Pillow (extra `train`). `--data` has a folder of images for each class. Without `--data`
images are made up, to try the program: `--image-size 32 --batch 4 --steps 14` takes one to two
minutes with two nodes on two CPU cores. Started again with the same `--folder`, on a file system
that all nodes share, the run goes on; without one, nothing is saved.
"""

import argparse
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from PIL import Image

import jdaso
from jdaso.checkpoint import Checkpoints
from jdaso.data import batches

EPOCHS, MAX_SKIPS = 90, 4
RATE, RATE_WARMUP_EPOCHS, MIN_RATE = 0.0125, 5, 1e-4  # RATE: as HeAT's, for 256 images per GPU


class ResNet50(nn.Module):
    classes: int

    @nn.compact
    def __call__(self, images, train):
        norm = partial(nn.BatchNorm, use_running_average=not train, momentum=0.9)
        conv = partial(nn.Conv, use_bias=False)
        x = conv(64, (7, 7), 2)((images.astype(jnp.float32) / 255 - 0.45) / 0.225)
        x = nn.max_pool(nn.relu(norm()(x)), (3, 3), (2, 2), "SAME")
        for stage, blocks in enumerate((3, 4, 6, 3)):
            for block in range(blocks):
                width, strides = 64 * 2**stage, 2 if stage > 0 and block == 0 else 1
                y = nn.relu(norm()(conv(width, (1, 1))(x)))
                y = nn.relu(norm()(conv(width, (3, 3), strides)(y)))
                y = norm(scale_init=nn.initializers.zeros)(conv(4 * width, (1, 1))(y))
                x = norm()(conv(4 * width, (1, 1), strides)(x)) if block == 0 else x
                x = nn.relu(x + y)
        return nn.Dense(self.classes)(x.mean((1, 2)))


def find_images(folder, if_none):
    if folder is None:
        return [(None, n % 10) for n in range(if_none)]
    folders = sorted(path for path in Path(folder).iterdir() if path.is_dir())
    return [(file, n) for n, path in enumerate(folders) for file in sorted(path.iterdir())]


def read_image(example, size, seed):
    (file, label), random = example, np.random.default_rng(seed)
    if file is None:  # noise, brighter for some classes than for others
        return random.integers(0, 100, (size, size, 3), np.uint8) + np.uint8(15 * label)
    image = Image.open(file).convert("RGB")
    side = int(min(image.size) * random.uniform(0.4, 1.0))  # a random square, sometimes mirrored
    left, top = (random.integers(0, length - side + 1) for length in image.size)
    image = np.asarray(image.resize((size, size), box=(left, top, left + side, top + side)))
    return image[:, :: random.choice((1, -1))]


def main(session, arguments, pool):
    batch, size = arguments.batch * len(session.devices), arguments.image_size
    examples = find_images(arguments.data, if_none=2 * batch * session.num_nodes)
    nodes = {"node": session.node, "num_nodes": session.num_nodes}
    share = lru_cache(1)(partial(batches, len(examples), batch, **nodes))
    length = len(share(epoch=0))
    epochs = {"total_epochs": EPOCHS, "warmup_epochs": RATE_WARMUP_EPOCHS}
    phases = jdaso.Phases.heat(steps_per_epoch=length, **epochs, max_skips=MAX_SKIPS)
    gpus = len(session.devices) * session.num_nodes
    peak = RATE * RATE_WARMUP_EPOCHS * max(gpus - 1, 1) / 6 * arguments.batch / 256
    rate = lambda n: peak * jnp.minimum(1, (n // length + 1) / RATE_WARMUP_EPOCHS)  # noqa: E731
    slow_down = jdaso.reduce_on_plateau(length, patience=6, min_scale=min(1, MIN_RATE / peak))
    inner = optax.chain(optax.sgd(rate, momentum=0.9), slow_down)
    tx = jdaso.daso(inner, phases=phases, session=session, local_axis="local")
    tx = optax.chain(optax.add_decayed_weights(1e-4), tx)
    model = ResNet50(1 + max(label for _, label in examples))
    init = jax.jit(partial(model.init, train=False))
    variables = jdaso.broadcast(init(jax.random.key(0), jnp.zeros((1, size, size, 3))), session)
    state = variables["params"], variables["batch_stats"], tx.init(variables["params"])

    def step(state, images, labels):  # runs once on each of the node's devices
        def loss_of(params):
            variables = {"params": params, "batch_stats": state[1]}
            logits, changed = model.apply(variables, images, train=True, mutable="batch_stats")
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return losses.mean(), changed["batch_stats"]

        (loss, stats), grads = jax.value_and_grad(loss_of, has_aux=True)(state[0])
        updates, opt_state = tx.update(grads, state[2], state[0], value=loss)
        stats, loss = jax.lax.pmean((stats, loss), "local")
        return (optax.apply_updates(state[0], updates), stats, opt_state), loss

    whole, split = jax.P(), jax.P("local")
    specs = {"in_specs": (whole, split, split), "out_specs": whole, "check_vma": False}
    step = jax.jit(jax.shard_map(step, mesh=session.mesh, **specs), donate_argnums=0)
    state = jax.device_put(state, jax.NamedSharding(session.mesh, whole))

    begin, first, loss = 0, jnp.nan, jnp.nan
    if arguments.folder:
        checkpoints = Checkpoints(arguments.folder, session, every_steps=length)
        state, begin = checkpoints.restore(state)
    for n in range(begin, min(arguments.steps, EPOCHS * length)):
        epoch, k = divmod(n, length)
        chosen = share(epoch=epoch)[k]
        images = pool.map(lambda i, n=n: read_image(examples[i], size, [n, i]), chosen)
        labels = np.array([examples[i][1] for i in chosen])
        # Nothing looks at the result until the epoch ends: the next images are read meanwhile.
        state, loss = step(state, np.stack(list(images)), labels)
        first = loss if n == begin else first
        if arguments.folder:
            checkpoints.after(n + 1, state)
        if session.node == 0 and k == length - 1:
            factor = optax.tree.get(state[2], "plateau").scale
            print(f"epoch {epoch}: loss {loss:.4f}, plateau factor {factor:g}", flush=True)

    params = jdaso.finalize(state[0], state[2], session)
    variables = {"params": params, "batch_stats": jdaso.mean(state[1], session)}
    checksum = zlib.crc32(b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(variables)))
    print(f"node {session.node}: loss {first:.3f} -> {loss:.3f}, parameters {checksum:08x}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data")
    parser.add_argument("--folder")
    for name, default in {"--image-size": 224, "--batch": 256, "--steps": 10**9}.items():
        parser.add_argument(name, type=int, default=default)
    with jdaso.Session() as session, ThreadPoolExecutor() as pool:
        main(session, parser.parse_args(), pool)
