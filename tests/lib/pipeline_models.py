"""Models to cut into stages: plain, deep, scanned, rematerialised, with long skips, with a state.

Each function takes sizes and returns a `Model`. `SMALL` names those that the tests train; the
defaults are the sizes of the papers.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

VGG16 = (1, 1, 0, 2, 2, 0, 4, 4, 4, 0, 8, 8, 8, 0, 8, 8, 8, 0)
"""Widths of the convolutions, in units of the first one's; 0 halves the image."""


class Model(NamedTuple):
    """Parameters, batches, loss and state of a model."""

    init: Callable[[int], Any]  # seed -> params
    batch: Callable[[int, int], Any]  # samples, seed -> batch
    loss_fn: Callable[..., Any]  # as jdaso.fit takes it
    init_state: Callable[[], Any] = lambda: None


def normal(random, shape, scale):
    return random.normal(scale=scale, size=shape).astype(np.float32)


def dense(random, inputs, outputs, gain=2.0):
    w = normal(random, (inputs, outputs), np.sqrt(gain / inputs))
    return {"w": w, "b": np.zeros(outputs, np.float32)}


def kernel(random, size, inputs, outputs, gain=2.0):
    return normal(random, (size, size, inputs, outputs), np.sqrt(gain / (size * size * inputs)))


def stack(trees):
    return jax.tree.map(lambda *x: np.stack(x), *trees)


def conv(x, w, strides=1):
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, w, (strides, strides), "SAME", dimension_numbers=numbers)


def halve(x):
    n, height, width, channels = x.shape
    return x.reshape(n, height // 2, 2, width // 2, 2, channels).max((2, 4))


def scaling(channels):
    return {"scale": np.ones(channels, np.float32), "shift": np.zeros(channels, np.float32)}


def group_norm(p, x, groups=4):
    """Normalizes each sample by itself, so that micro-batches do not matter."""
    y = x.reshape(*x.shape[:-1], groups, -1)
    y = y - y.mean((1, 2, 4), keepdims=True)
    y = y * jax.lax.rsqrt(jnp.square(y).mean((1, 2, 4), keepdims=True) + 1e-5)
    return y.reshape(x.shape) * p["scale"] + p["shift"]


def batch_norm(p, x, state, momentum=0.9):
    mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
    new = {"mean": mean, "var": var}
    new = jax.tree.map(lambda old, now: momentum * old + (1 - momentum) * now, state, new)
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * p["scale"] + p["shift"], new


def layer_norm(p, x):
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * p["scale"] + p["shift"]


def cross_entropy(logits, labels):
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)
    return -picked.mean()


def images(size, channels, classes):
    """Makes batches of noise, brighter for some classes than for others."""

    def batch(samples, seed):
        random = np.random.default_rng(seed)
        labels = random.integers(0, classes, samples).astype(np.int32)
        pixels = random.normal(size=(samples, size, size, channels)) + labels[:, None, None, None]
        return {"image": pixels.astype(np.float32), "label": labels}

    return batch


def vgg16(width=64, size=32, channels=3, classes=10) -> Model:
    """VGG-16 (Simonyan and Zisserman 2015, table 1, D) with the count of correct answers as aux."""
    widths = [width * n for n in VGG16 if n]
    hidden = 64 * width

    def init(seed):
        random = np.random.default_rng(seed)
        pairs = zip([channels, *widths], widths, strict=False)
        convs = [{"w": kernel(random, 3, a, b), "b": np.zeros(b, np.float32)} for a, b in pairs]
        sides = [widths[-1] * (size // 32) ** 2, hidden, hidden, classes]
        pairs = zip(sides, sides[1:], strict=False)
        return {"convs": convs, "dense": [dense(random, a, b) for a, b in pairs]}

    def loss_fn(params, batch):
        x, convs = batch["image"], iter(params["convs"])
        for n in VGG16:
            if n:
                p = next(convs)
                x = jax.nn.relu(conv(x, p["w"]) + p["b"])
            else:
                x = halve(x)
        x = x.reshape(len(x), -1)
        for k, p in enumerate(params["dense"]):
            x = (jax.nn.relu(x) if k else x) @ p["w"] + p["b"]
        right = (x.argmax(-1) == batch["label"]).sum()
        return cross_entropy(x, batch["label"]), {"right": right, "logit": x.max(-1).mean()}

    return Model(init, images(size, channels, classes), loss_fn)


def resnet(
    depth=110, width=16, size=32, channels=3, classes=10, *, norm="group", scan=False
) -> Model:
    """Pre-activation bottlenecks (He et al. 2016, 1603.05027) in three groups; depth is 9 n + 2.

    Args:
        depth: 110, 1001, 5006, ...: convolutions and the last layer.
        width: of the narrow convolutions of the first group, doubled in each further group.
        size: of the images.
        channels: of the images.
        classes: of the labels.
        norm: ``"group"``, or ``"batch"`` with running means as the state.
        scan: whether the blocks of a group, except its first, are one `lax.scan`.
    """
    blocks, rest = divmod(depth - 2, 9)
    assert rest == 0 and blocks, f"depth must be 9 n + 2, got {depth}"
    assert not (scan and norm == "batch"), "the state of a scan cannot be cut"

    def init_block(random, inputs, narrow):
        p = {"conv1": kernel(random, 1, inputs, narrow), "conv2": kernel(random, 3, narrow, narrow)}
        p["conv3"] = kernel(random, 1, narrow, 4 * narrow, 2 / blocks)
        p |= {f"norm{k + 1}": scaling(n) for k, n in enumerate((inputs, narrow, narrow))}
        return p | ({"skip": kernel(random, 1, inputs, 4 * narrow)} if inputs != 4 * narrow else {})

    def init(seed):
        random = np.random.default_rng(seed)
        params, inputs = {"stem": kernel(random, 3, channels, width)}, width
        for group in range(3):
            narrow = width * 2**group
            made = [init_block(random, inputs, narrow)]
            inputs = 4 * narrow
            made += [init_block(random, inputs, narrow) for _ in range(blocks - 1)]
            if scan and blocks > 1:
                made = [made[0], stack(made[1:])]
            params[f"group{group}"] = made
        return params | {"norm": scaling(inputs), "last": dense(random, inputs, classes, 1.0)}

    def block(p, x, strides, norm):
        y = jax.nn.relu(norm(p["norm1"], x))
        skip = conv(y, p["skip"], strides) if "skip" in p else x
        y = conv(y, p["conv1"], strides)
        y = conv(jax.nn.relu(norm(p["norm2"], y)), p["conv2"])
        return skip + conv(jax.nn.relu(norm(p["norm3"], y)), p["conv3"])

    def apply(params, x, norm):
        x = conv(x, params["stem"])
        for group in range(3):
            first, *others = params[f"group{group}"]
            x = block(first, x, 1 + (group > 0), norm)
            if scan and others:
                x, _ = jax.lax.scan(lambda x, p: (block(p, x, 1, norm), None), x, others[0])
            else:
                for p in others:
                    x = block(p, x, 1, norm)
        x = jax.nn.relu(norm(params["norm"], x)).mean((1, 2))
        return x @ params["last"]["w"] + params["last"]["b"]

    def loss_fn(params, batch):
        return cross_entropy(apply(params, batch["image"], group_norm), batch["label"])

    def loss_with_state(params, state, batch):
        olds, news = iter(state), []

        def norm(p, x):
            x, new = batch_norm(p, x, next(olds))
            news.append(new)
            return x

        logits = apply(params, batch["image"], norm)
        return cross_entropy(logits, batch["label"]), (news, logits.mean())

    def init_state():
        widths, inputs = [], width
        for group in range(3):
            for _ in range(blocks):
                widths += [inputs, width * 2**group, width * 2**group]
                inputs = 4 * width * 2**group
        return [
            {"mean": np.zeros(n, np.float32), "var": np.ones(n, np.float32)}
            for n in (*widths, inputs)
        ]

    batch = images(size, channels, classes)
    if norm == "batch":
        return Model(init, batch, loss_with_state, init_state)
    return Model(init, batch, loss_fn)


def transformer(
    blocks=12,
    width=768,
    heads=12,
    length=1024,
    vocabulary=50257,
    *,
    scan=False,
    remat=False,
    dropout=0.0,
) -> Model:
    """A decoder like GPT-2: causal, pre-normalized, with its embedding reused for the logits.

    Args:
        blocks: number of blocks.
        width: of the residual stream.
        heads: of attention.
        length: tokens of a sample.
        vocabulary: number of different tokens.
        scan: one `lax.scan` over stacked blocks instead of a loop.
        remat: `jax.checkpoint` of each block.
        dropout: share of activations dropped; the batch then has a key, one for all samples.
    """

    def init_block(random):
        return {
            "norm1": scaling(width),
            "norm2": scaling(width),
            "qkv": dense(random, width, 3 * width, 1.0)["w"],
            "out": dense(random, width, width, 1 / blocks),
            "up": dense(random, width, 4 * width),
            "down": dense(random, 4 * width, width, 1 / blocks),
        }

    def init(seed):
        random = np.random.default_rng(seed)
        made = [init_block(random) for _ in range(blocks)]
        return {
            "embed": normal(random, (vocabulary, width), 0.3),
            "places": normal(random, (length, width), 0.3),
            "blocks": stack(made) if scan else made,
            "norm": scaling(width),
        }

    def drop(x, key):
        if not dropout:
            return x
        return jnp.where(jax.random.bernoulli(key, 1 - dropout, x.shape), x / (1 - dropout), 0)

    def block(p, x, key):
        keys = jax.random.split(key, 2) if dropout else (None, None)
        n, length, _ = x.shape
        q, k, v = jnp.split(layer_norm(p["norm1"], x) @ p["qkv"], 3, -1)
        q, k, v = (y.reshape(n, length, heads, -1) for y in (q, k, v))
        scores = jnp.einsum("nqhc,nkhc->nhqk", q, k) / np.sqrt(width / heads)
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
        y = jnp.einsum("nhqk,nkhc->nqhc", jax.nn.softmax(scores), v).reshape(x.shape)
        x = x + drop(y @ p["out"]["w"] + p["out"]["b"], keys[0])
        y = jax.nn.gelu(layer_norm(p["norm2"], x) @ p["up"]["w"] + p["up"]["b"])
        return x + drop(y @ p["down"]["w"] + p["down"]["b"], keys[1])

    block = jax.checkpoint(block) if remat else block

    def loss_fn(params, batch):
        tokens = batch["tokens"]
        x = params["embed"][tokens[:, :-1]] + params["places"]
        keys = jax.random.split(batch["key"], blocks) if dropout else None
        if scan:
            step = lambda x, each: (block(each[0], x, each[1]), None)  # noqa: E731
            x, _ = jax.lax.scan(step, x, (params["blocks"], keys))
        else:
            for k, p in enumerate(params["blocks"]):
                x = block(p, x, keys[k] if dropout else None)
        return cross_entropy(layer_norm(params["norm"], x) @ params["embed"].T, tokens[:, 1:])

    def batch(samples, seed):
        random = np.random.default_rng(seed)
        starts = random.integers(0, vocabulary, (samples, 1))
        tokens = (starts + np.arange(length + 1) * random.integers(1, 4, (samples, 1))) % vocabulary
        key = {"key": jax.random.key(seed)} if dropout else {}
        return {"tokens": tokens.astype(np.int32), **key}

    return Model(init, batch, loss_fn)


def unet(levels=4, width=64, size=128, channels=3) -> Model:
    """A U-Net (Ronneberger et al. 2015) that removes noise: each level's skip spans all later ones.

    Its input includes the noise level, as in diffusion: all stages use an embedding of that.
    """
    widths = [width * 2**k for k in range(levels + 1)]

    def init_pair(random, inputs, outputs):
        return {
            "conv1": kernel(random, 3, inputs, outputs),
            "conv2": kernel(random, 3, outputs, outputs),
            "norm1": scaling(outputs),
            "norm2": scaling(outputs),
            "level": dense(random, 4 * width, outputs, 1.0),
        }

    def init(seed):
        random = np.random.default_rng(seed)
        pairs = zip([channels, *widths], widths, strict=False)
        down = [init_pair(random, a, b) for a, b in pairs]
        up = [init_pair(random, 3 * n, n) for n in widths[:-1]]
        last, level = kernel(random, 1, width, channels, 1.0), dense(random, 1, 4 * width)
        return {"down": down, "up": up, "last": last, "level": level}

    def pair(p, x, level):
        x = jax.nn.silu(group_norm(p["norm1"], conv(x, p["conv1"])))
        x = x + (level @ p["level"]["w"] + p["level"]["b"])[:, None, None]
        return jax.nn.silu(group_norm(p["norm2"], conv(x, p["conv2"])))

    def loss_fn(params, batch):
        x, skips = batch["noisy"], []
        level = jax.nn.silu(batch["level"] @ params["level"]["w"] + params["level"]["b"])
        for p in params["down"][:-1]:
            x = pair(p, x, level)
            skips.append(x)
            x = halve(x)
        x = pair(params["down"][-1], x, level)
        for p, skip in zip(params["up"][::-1], skips[::-1], strict=True):
            x = pair(p, jnp.concatenate([skip, x.repeat(2, 1).repeat(2, 2)], -1), level)
        return jnp.square(conv(x, params["last"]) - batch["clean"]).mean()

    def batch(samples, seed):
        random = np.random.default_rng(seed)
        places = np.linspace(0, np.pi, size)
        waves = np.sin(random.uniform(1, 4, (samples, channels, 2, 1)) * places)
        clean = np.einsum("nci,ncj->nijc", waves[:, :, 0], waves[:, :, 1])
        level = random.uniform(0.2, 1.0, (samples, 1))
        noisy = clean + level[:, None, None] * random.normal(size=clean.shape)
        made = {"clean": clean, "noisy": noisy, "level": level}
        return {name: array.astype(np.float32) for name, array in made.items()}

    return Model(init, batch, loss_fn)


_tiny_text = partial(transformer, blocks=12, width=16, heads=2, length=8, vocabulary=31)

SMALL: dict[str, Callable[..., Model]] = {
    "vgg16": partial(vgg16, width=2, channels=1),
    "resnet": partial(resnet, depth=11, width=4, size=8, channels=1),
    "resnet_scan": partial(resnet, depth=29, width=4, size=8, channels=1, scan=True),
    "resnet_batch_norm": partial(resnet, depth=11, width=4, size=8, channels=1, norm="batch"),
    "transformer": _tiny_text,
    "transformer_scan": partial(_tiny_text, scan=True),
    "transformer_remat": partial(_tiny_text, remat=True),
    "transformer_scan_remat": partial(_tiny_text, scan=True, remat=True),
    "transformer_dropout": partial(_tiny_text, blocks=4, dropout=0.2),
    "unet": partial(unet, levels=2, width=4, size=8, channels=1),
}
