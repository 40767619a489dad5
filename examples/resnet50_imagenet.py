"""ResNet-50 on ImageNet with the recipe of HeAT's DASO example.

    mpiexec -n NODES python examples/resnet50_imagenet.py --data IMAGENET/train

Needs Pillow (extra `train`). `--data` has a folder of images for each class. Without `--data`
images are made up, to try the program: `--image-size 32 --batch 4 --steps 14` takes one to two
minutes with two nodes on two CPU cores.
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
from jdaso.data import batches

EPOCHS, MAX_SKIPS = 90, 4
RATE_PER_256_IMAGES, RATE_WARMUP_EPOCHS, MIN_RATE = 0.1, 5, 1e-4


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
    share = partial(batches, len(examples), batch, node=session.node, num_nodes=session.num_nodes)
    share = lru_cache(1)(share)
    length = len(share(epoch=0))
    phases = jdaso.Phases.heat(
        steps_per_epoch=length,
        total_epochs=EPOCHS,
        warmup_epochs=RATE_WARMUP_EPOCHS,
        max_skips=MAX_SKIPS,
    )
    inner = optax.inject_hyperparams(optax.sgd)(0.0, momentum=0.9)
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

    peak, losses = RATE_PER_256_IMAGES * batch * session.num_nodes / 256, []
    least = min(1, MIN_RATE / peak)
    plateau = optax.contrib.reduce_on_plateau(0.5, 6, rtol=0.05, min_scale=least)  # PyTorch's 5
    slow_down = plateau.init(None)
    for n in range(min(arguments.steps, EPOCHS * length)):
        epoch, k = divmod(n, length)
        if k == 0 and losses:  # the mean over all nodes, so that all take the same learning rate
            mean_loss = jdaso.mean(jnp.stack(losses[-length:]).mean(), session)
            _, slow_down = plateau.update(None, slow_down, value=mean_loss)
            if session.node == 0:
                print(f"epoch {epoch - 1}: loss {mean_loss:.4f}", flush=True)
        rate = peak * float(slow_down.scale) * min(1, (epoch + 1) / RATE_WARMUP_EPOCHS)
        settings = state[2][1].inner.hyperparams
        settings["learning_rate"] = jnp.full_like(settings["learning_rate"], rate)
        chosen = share(epoch=epoch)[k]
        images = pool.map(lambda i, n=n: read_image(examples[i], size, [n, i]), chosen)
        labels = np.array([examples[i][1] for i in chosen])
        state, loss = step(state, np.stack(list(images)), labels)
        losses.append(loss)  # not looked at: the next images are read while this step runs

    params = jdaso.finalize(state[0], state[2], session)
    variables = {"params": params, "batch_stats": jdaso.mean(state[1], session)}
    checksum = zlib.crc32(b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(variables)))
    print(
        f"node {session.node}: loss {losses[0]:.3f} -> {losses[-1]:.3f}, parameters {checksum:08x}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data")
    for name, default in {"--image-size": 224, "--batch": 256, "--steps": 10**9}.items():
        parser.add_argument(name, type=int, default=default)
    with jdaso.Session() as session, ThreadPoolExecutor() as pool:
        main(session, parser.parse_args(), pool)
