"""A character-level transformer: AdamW inside, Nesterov momentum between the nodes.

    mpiexec -n 2 python examples/char_transformer.py [--text FILE] [--steps N]

Reads FILE, else the Jargon File (Debian package dict-jargon), else Python's own reference manual.
"""

import argparse
import gzip
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

import jdaso

BATCH, LENGTH = 16, 64  # texts per node and step, characters per text
WIDTH, LAYERS, HEADS = 96, 2, 4
LEARNING_RATE = 3e-3
JARGON = Path("/usr/share/dictd/jargon.dict.dz")
if not JARGON.is_file():  # where `make setup` unpacks it if it cannot install it
    JARGON = Path(__file__).parents[1] / f".venv/debian{JARGON}"


class Transformer(nn.Module):
    @nn.compact
    def __call__(self, characters):  # [batch, length] -> logits [batch, length, 128]
        places = self.param("places", nn.initializers.normal(0.02), (LENGTH, WIDTH))
        x = nn.Embed(128, WIDTH)(characters) + places
        mask = nn.make_causal_mask(characters)
        for _ in range(LAYERS):
            x = x + nn.MultiHeadDotProductAttention(HEADS)(nn.LayerNorm()(x), mask=mask)
            x = x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(4 * WIDTH)(nn.LayerNorm()(x))))
        return nn.Dense(128)(nn.LayerNorm()(x))


def read_text(path):
    """Returns the text as ASCII codes, and a sentence that names it."""
    if path:
        raw, name = Path(path).read_bytes(), f"the file {path}"
    elif JARGON.is_file():
        raw, name = gzip.decompress(JARGON.read_bytes()), f"the Jargon File, {JARGON}"
    else:
        from pydoc_data.topics import topics

        raw, name = "\n".join(topics.values()).encode(), "Python's reference manual (pydoc_data)"
    text = np.frombuffer(raw, np.uint8)
    text = np.where(text < 128, text, ord("?")).astype(np.int32)
    if len(text) < 100 * LENGTH:
        raise SystemExit(f"{name} has {len(text)} characters; give at least {100 * LENGTH}.")
    return text, f"Text: {name}, {len(text)} characters"


def main(session, arguments):
    text, source = read_text(arguments.text)
    if session.node == 0:
        print(source)
    held_out = text[-(len(text) // 20) :]
    text = text[: -len(held_out)]

    steps = arguments.steps
    rate = optax.warmup_cosine_decay_schedule(0.0, LEARNING_RATE, max(1, steps // 10), steps)
    inner = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, weight_decay=0.01))
    phases = jdaso.Phases(
        steps, warmup_steps=steps // 5, cooldown_steps=steps // 10, sync_every=10, delay=2
    )
    # Moves 1.4 times as far as the mean of the nodes: see "Merge" in docs/choosing.md.
    outer = jdaso.outer(optax.sgd(0.7, momentum=0.5, nesterov=True))
    tx = jdaso.daso(inner, phases=phases, session=session, merge=outer)
    model = Transformer()
    params = model.init(jax.random.key(0), jnp.zeros((1, LENGTH), jnp.int32))
    params = jdaso.broadcast(params, session)
    opt_state = tx.init(params)

    def loss_of(params, characters):
        logits = model.apply(params, characters[:, :-1])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, characters[:, 1:])
        return losses.mean()

    @jax.jit
    def step(params, opt_state, characters):
        loss, grads = jax.value_and_grad(loss_of)(params, characters)
        updates, opt_state = tx.update(grads, opt_state, params, value=loss)
        return optax.apply_updates(params, updates), opt_state, loss

    def cut(text, random, count):
        starts = random.integers(0, len(text) - LENGTH, count)
        return text[starts[:, None] + np.arange(LENGTH + 1)]

    test_loss = jax.jit(loss_of)
    test = cut(held_out, np.random.default_rng(0), 64)
    first = test_loss(params, test)
    random = np.random.default_rng(1 + session.node)  # each node reads different places
    for n in range(steps):
        params, opt_state, loss = step(params, opt_state, cut(text, random, BATCH))
        if session.node == 0 and n % 50 == 0:
            print(f"step {n}, {phases.name(n)}, loss {loss:.3f}")

    params = jdaso.finalize(params, opt_state, session)
    last = test_loss(params, test)
    checksum = zlib.crc32(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params)))
    print(
        f"node {session.node}: loss {first:.4f} -> {last:.4f} on text held out "
        f"({last / np.log(2):.2f} bits a character), parameters {checksum:08x}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--text")
    parser.add_argument("--steps", type=int, default=200)
    with jdaso.Session() as session:
        main(session, parser.parse_args())
