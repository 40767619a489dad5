"""ResNet-50 on ImageNet, with the recipe of HeAT's DASO example.

    mpiexec -n NODES python examples/resnet50_imagenet.py --data IMAGENET/train

`--data` has one folder of images for each class. Without it images are generated, to see the program
run: `--image-size 32 --batch 4 --steps 12` takes about a minute on two CPU cores.
"""

import argparse
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import jdaso
import numpy as np
import optax
from flax import linen as nn
from jax.sharding import PartitionSpec as P
from jdaso.data import batches
from PIL import Image

EPOCHS, MAX_SKIPS = 90, 4
RATE_PER_256_IMAGES, RATE_WARMUP_EPOCHS, MIN_RATE = 0.1, 5, 1e-4
FACTOR, PATIENCE, THRESHOLD = 0.5, 5, 0.05  # on a plateau of the loss


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


def read_image(file, label, size, random):
    if file is None:  # noise, brighter for some classes than for others
        return random.integers(0, 100, (size, size, 3), np.uint8) + np.uint8(15 * label)
    image = Image.open(file).convert("RGB")
    side = int(min(image.size) * random.uniform(0.4, 1.0))  # a random square, sometimes mirrored
    left, top = (random.integers(0, length - side + 1) for length in image.size)
    image = np.asarray(image.resize((size, size), box=(left, top, left + side, top + side)))
    return image[:, :: random.choice((1, -1))]


def main(session, arguments):
    batch, size = arguments.batch * len(session.devices), arguments.image_size
    examples = find_images(arguments.data, if_none=2 * batch * session.num_nodes)
    share = partial(batches, len(examples), batch, node=session.node, num_nodes=session.num_nodes)
    epoch_steps = len(share(epoch=0))
    sgd = lambda rate: optax.chain(optax.add_decayed_weights(1e-4), optax.sgd(rate, momentum=0.9))
    tx = jdaso.daso(
        optax.inject_hyperparams(sgd)(0.0),
        phases=jdaso.Phases.heat(epoch_steps, EPOCHS, max_skips=MAX_SKIPS),
        session=session,
        local_axis="local",
    )
    model = ResNet50(1 + max(label for _, label in examples))
    init = jax.jit(partial(model.init, train=False))
    variables = jdaso.broadcast(init(jax.random.key(0), jnp.zeros((1, size, size, 3))), session)
    state = variables["params"], variables["batch_stats"], tx.init(variables["params"])

    def step(state, images, labels):  # runs once on each of the node's devices
        def loss_of(params):
            variables = {"params": params, "batch_stats": batch_stats}
            logits, changed = model.apply(variables, images, train=True, mutable="batch_stats")
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return losses.mean(), changed["batch_stats"]

        params, batch_stats, opt_state = state
        (loss, batch_stats), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
        updates, opt_state = tx.update(grads, opt_state, params, value=loss)
        batch_stats, loss = jax.lax.pmean((batch_stats, loss), "local")
        return (optax.apply_updates(params, updates), batch_stats, opt_state), loss

    specs = {"in_specs": (P(), P("local"), P("local")), "out_specs": P(), "check_vma": False}
    step = jax.jit(jax.shard_map(step, mesh=session.mesh, **specs), donate_argnums=0)
    state = jax.device_put(state, jax.sharding.NamedSharding(session.mesh, P()))

    peak = RATE_PER_256_IMAGES * batch * session.num_nodes / 256
    scale, best, bad_epochs, losses = 1.0, float("inf"), 0, []
    pool = ThreadPoolExecutor()
    for n in range(min(arguments.steps or EPOCHS * epoch_steps, EPOCHS * epoch_steps)):
        epoch = n // epoch_steps
        if n % epoch_steps == 0:
            if losses:  # the mean over the nodes: all must take the same learning rate
                loss = float(jdaso.mean(jnp.stack(losses[-epoch_steps:]).mean(), session))
                bad_epochs = 0 if loss < best * (1 - THRESHOLD) else bad_epochs + 1
                best = min(best, loss)
                if bad_epochs > PATIENCE:
                    scale, bad_epochs = max(scale * FACTOR, MIN_RATE / peak), 0
                if session.node == 0:
                    print(f"epoch {epoch - 1}: loss {loss:.4f}", flush=True)
            rate = peak * scale * min(1, (epoch + 1) / RATE_WARMUP_EPOCHS)
            hyperparams = state[2].inner.hyperparams
            hyperparams["learning_rate"] = jnp.full_like(hyperparams["learning_rate"], rate)
            chosen = share(epoch=epoch)
        pictures = [(*examples[i], size, np.random.default_rng([n, i])) for i in chosen[n % epoch_steps]]
        images = np.stack(list(pool.map(read_image, *zip(*pictures))))
        state, loss = step(state, images, np.array([label for _, label, *_ in pictures]))
        losses.append(loss)  # not fetched here: the next images are read while the step runs

    params = jdaso.finalize(state[0], state[2], session)
    variables = {"params": params, "batch_stats": jdaso.mean(state[1], session)}
    checksum = zlib.crc32(b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(variables)))
    print(
        f"node {session.node}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, parameters {checksum:08x}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="folder with one folder of images for each class")
    for name, default in (("--image-size", 224), ("--batch", 256), ("--steps", None)):
        parser.add_argument(name, type=int, default=default)
    with jdaso.Session() as session:
        main(session, parser.parse_args())
