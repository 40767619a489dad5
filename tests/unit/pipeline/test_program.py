"""Stages of a traced loss, played on threads: loss, aux and gradients of `jax.value_and_grad`.

One table of functions; each is cut in several ways, and its micro-batches have unequal sizes.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from nights import nightly, rows
from pipeline_in_process import expected, loss_and_gradients

from jdaso import pipeline
from jdaso.pipeline._plan import equations as _equations
from jdaso.pipeline._plan import trace as _trace

SAMPLES, MICROBATCHES, D = 6, 3, 4
CASES = {}


def case(make):
    """Adds a row: ``make() -> (loss_fn, params, batch)``; loss_fn gives ``(loss, aux)``."""
    CASES[make.__name__] = make
    return make


def normal(seed, *shape, dtype=np.float32, scale=0.5):
    return (scale * np.random.default_rng(seed).normal(size=shape)).astype(dtype)


def inputs():
    return normal(0, SAMPLES, D)


def dense(params, x):
    return jnp.tanh(x @ params["w"] + params["b"])


def layer(seed):
    return {"w": normal(seed, D, D), "b": normal(seed + 100, D)}


def layers(number, seed=1):
    return [layer(seed + k) for k in range(number)]


def stacked(number, dtype=np.float32):
    return {"w": normal(7, number, D, D, dtype=dtype), "b": normal(8, number, D, dtype=dtype)}


def squares(x):
    """A loss with nothing in aux."""
    return jnp.mean(x**2), None


@case
def mlp():
    def loss_fn(params, batch):
        h = functools.reduce(lambda h, p: dense(p, h), params, batch["x"])
        error = h - batch["y"]
        wrong = jnp.sum(jnp.any(jnp.abs(error) > 0.5, -1))
        return jnp.mean(error**2), {"wrong": wrong, "mean": jnp.mean(h, 0)}

    return loss_fn, layers(5), {"x": inputs(), "y": normal(1, SAMPLES, D)}


@case
def nested_jit():
    inner = jax.jit(lambda p, x: jax.jit(dense)(p, jnp.sin(x)))

    @jax.jit
    def loss_fn(params, x):
        for p in params:
            x = inner(p, x)
        return squares(x)

    return loss_fn, layers(3), inputs()


@case
def custom_jvp():
    @jax.custom_jvp
    def twice(x, w):
        return 2 * x @ w

    # Not the true derivative, so that losing the rule is seen.
    twice.defjvps(lambda t, ans, x, w: 5 * t @ w, lambda t, ans, x, w: 7 * x @ t)

    def loss_fn(params, x):
        for p in params:
            x = jnp.tanh(twice(x, p["w"])) + p["b"]
        return squares(jax.nn.relu(x))

    return loss_fn, layers(3), inputs()


@case
def custom_vjp():
    @jax.custom_vjp
    def clipped(x, scale, times):
        return x * scale * times

    def forward(x, scale, times):
        return clipped(x, scale, times), (x, scale)

    def backward(kept, t):
        x, scale = kept
        return 5 * t * scale, 3 * jnp.sum(t * x), None

    clipped.defvjp(forward, backward)

    def loss_fn(params, batch):
        x, times = batch["x"], batch["times"]
        for p in params:
            x = clipped(dense(p, x), p["s"], times[:, None])
        return squares(x)

    params = [p | {"s": np.float32(1.5 + k)} for k, p in enumerate(layers(3))]
    return loss_fn, params, {"x": inputs(), "times": np.arange(1, SAMPLES + 1, dtype=np.int32)}


def remat_case(**settings):
    def block(p, x):
        return dense(p[1], checkpoint_name(jnp.sin(dense(p[0], x)), "kept"))

    def loss_fn(params, x):
        for k in range(0, 4, 2):
            x = jax.checkpoint(block, **settings)(params[k : k + 2], x)
        return squares(x)

    return loss_fn, layers(4), inputs()


@case
def remat():
    return remat_case()


@case
def remat_with_names():
    policy = jax.checkpoint_policies.save_only_these_names("kept")
    return remat_case(policy=policy, prevent_cse=False)


@case
def remat_of_dots():
    return remat_case(policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)


@case
def remat_of_all():
    """One call that has to be taken apart, with more inside and constants closed over."""
    table = jnp.asarray(normal(3, D, D))

    @jax.checkpoint
    def inner(p, x):
        return jax.checkpoint(dense)(p, x @ table)

    def loss_fn(params, x):
        return jax.checkpoint(
            lambda x: squares(functools.reduce(lambda h, p: inner(p, h), params, x))
        )(x)

    return loss_fn, layers(4), inputs()


def scan_case(params, step, **settings):
    def loss_fn(params, x):
        x, ys = lax.scan(step, x, params, **settings)
        loss, _ = squares(x)
        return loss, ys

    return loss_fn, params, inputs()


@case
def scan():
    return scan_case(stacked(6), lambda x, p: (dense(p, x), None))


@case
def scan_with_ys():
    """The results of all layers are used in the loss as a whole."""

    def loss_fn(params, x):
        x, (means, count) = lax.scan(
            lambda x, p: (dense(p, x), (jnp.mean(x, 0), jnp.sum(x > 0))), x, params
        )
        return jnp.mean(x**2) + jnp.sum(means * jnp.arange(5.0)[:, None]), (means, count)

    return loss_fn, stacked(5), inputs()


@case
def scan_of_casts():
    def loss_fn(params, x):
        half = jax.tree.map(lambda w: w.astype(jnp.bfloat16), params)
        x, _ = lax.scan(lambda x, p: (dense(p, x), None), x.astype(jnp.bfloat16), half)
        return squares(x.astype(jnp.float32))

    return loss_fn, stacked(6), inputs()


@case
def scan_of_scaled_weights():
    """Rows computed from a stacked parameter, and a row of it by itself."""

    def loss_fn(params, x):
        scaled = {"w": 0.5 * params["w"], "b": params["b"] - jnp.mean(params["b"], 0)}
        x, _ = lax.scan(lambda x, p: (dense(p, x), None), x, scaled)
        return squares(x @ params["w"][2])

    return loss_fn, stacked(5), inputs()


@case
def scan_with_shared_and_own_weights():
    def loss_fn(params, x):
        def step(carry, p):
            x, total = carry
            x = dense(p["layer"], x) @ params["shared"]
            return (x, total + jnp.sum(x) * p["gain"][0]), jnp.max(x)

        (x, total), tops = lax.scan(step, (x, 0.0), params["stack"])
        return jnp.mean(x**2) + 0.01 * total, tops

    stack = {"layer": stacked(4), "gain": normal(5, 4, 1)}
    return loss_fn, {"shared": normal(6, D, D), "stack": stack}, inputs()


@case
def scan_unrolled():
    return scan_case(stacked(6), lambda x, p: (dense(p, x), None), unroll=4)


@case
def scan_twice_over_the_same():
    def loss_fn(params, x):
        for _ in range(2):
            x, _ = lax.scan(lambda x, p: (dense(p, x), None), x, params)
        return squares(x)

    return loss_fn, stacked(3), inputs()


@case
def scan_over_two_halves():
    def loss_fn(params, x):
        first = jax.tree.map(lambda w: w[:2], params)
        second = jax.tree.map(lambda w: w[2:], params)
        x, _ = lax.scan(lambda x, p: (dense(p, x), None), x, first)
        x, _ = lax.scan(lambda x, p: (dense(p, x), None), x, second)
        return squares(x)

    return loss_fn, stacked(5), inputs()


@case
def scan_in_remat():
    def loss_fn(params, x):
        @jax.checkpoint
        def body(params, x):
            return lax.scan(lambda x, p: (dense(p, x), None), x, params)[0]

        return squares(body(params, x))

    return loss_fn, stacked(5), inputs()


@case
def remat_in_scan():
    return scan_case(stacked(5), lambda x, p: (jax.checkpoint(dense)(p, x), jnp.sum(x)))


@case
def scan_in_scan():
    def loss_fn(params, x):
        def outer(x, p):
            return lax.scan(lambda x, p: (dense(p, x), None), x, p)

        return squares(lax.scan(outer, x, params)[0])

    params = {"w": normal(7, 3, 2, D, D), "b": normal(8, 3, 2, D)}
    return loss_fn, params, inputs()


@case
def reverse_scan():
    return scan_case(stacked(4), lambda x, p: (dense(p, x), jnp.mean(x)), reverse=True)


@case
def scan_over_time():
    """A recurrent net: shared weights, samples and their lengths as what is scanned over."""

    def loss_fn(params, batch):
        def step(h, now):
            x, at = now
            new = jnp.tanh(x @ params["in"] + h @ params["h"])
            return jnp.where((at < batch["length"])[:, None], new, h), None

        times = jnp.swapaxes(batch["x"], 0, 1)
        h, _ = lax.scan(step, jnp.zeros_like(times[0]), (times, jnp.arange(len(times))))
        return squares(h @ params["out"])

    params = {name: normal(k, D, D) for k, name in enumerate(("in", "h", "out"))}
    lengths = np.arange(SAMPLES, dtype=np.int32) % 4
    return loss_fn, params, {"x": normal(9, SAMPLES, 4, D), "length": lengths}


@case
def scan_over_layers_and_noise():
    """Scans over parameters, and over arrays that the batch makes."""

    def loss_fn(params, x):
        noise = jnp.stack([jnp.sin(x + k) for k in range(4)])

        def step(h, now):
            p, z = now
            return dense(p, h + z), None

        return squares(lax.scan(step, x, (params, noise))[0])

    return loss_fn, stacked(4), inputs()


@case
def while_loops():
    def loss_fn(params, x):
        steps = lax.while_loop(
            lambda c: c[0] < 3, lambda c: (c[0] + 1, ~c[1]), (0, jnp.sum(x) > 0)
        )[0]
        h = lax.fori_loop(0, 3, lambda _, h: dense(params[0], h), x)
        return squares(dense(params[1], h) * steps)

    return loss_fn, layers(2), inputs()


@case
def cond():
    def loss_fn(params, x):
        for p in params:
            x = lax.cond(
                jnp.sum(x) > 0, lambda p, x: dense(p, x), lambda p, x: x @ p["w"] + 1, p, x
            )
            x = lax.switch(
                jnp.argmax(x[0]) % 2, [jnp.sin, lambda x, p=p: x * jnp.sum(p["b"] ** 2)], x
            )
        return squares(x)

    return loss_fn, layers(3), inputs()


@case
def closed_over_constants():
    table, scale = jnp.asarray(normal(3, D, D)), np.float32(1.5)
    index = np.array([2, 0, 3, 1])

    def loss_fn(params, x):
        for p in params:
            x = dense(p, (x @ table)[:, index] * scale)
        return squares(x - table[0])

    return loss_fn, layers(3), inputs()


@case
def tied_weights():
    def loss_fn(params, batch):
        x = params["embedding"][batch["tokens"]]
        for p in params["layers"]:
            x = dense(p, x)
        logits = x @ params["embedding"].T
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])
        return jnp.mean(losses), jnp.mean(logits)

    tokens = np.random.default_rng(2).integers(0, 6, (2, SAMPLES)).astype(np.int32)
    params = {"embedding": normal(4, 6, D), "layers": layers(3)}
    return loss_fn, params, {"tokens": tokens[0], "labels": tokens[1]}


@case
def used_in_first_and_last_stage_and_rows_between():
    """A stacked leaf: one row in front, all of it in the middle, one row behind."""

    def loss_fn(params, x):
        x = x @ params["w"][0]
        x, _ = lax.scan(lambda x, p: (dense(p, x), None), x, params)
        return jnp.mean((x @ params["w"][-1]) ** 2) + jnp.sum(params["w"] ** 2), None

    return loss_fn, stacked(4), inputs()


@case
def regularised():
    """Weights of which some are used in the loss only, and some never."""

    def loss_fn(params, x):
        for p in params["layers"]:
            x = dense(p, x)
        penalty = sum(jnp.sum(w**2) for w in jax.tree.leaves(params["layers"]))
        return jnp.mean((x * params["last"]) ** 2) + 1e-2 * penalty, penalty

    params = {
        "layers": layers(3),
        "last": normal(5, D),
        "never": normal(6, 3),
        "nor": np.float32(3),
    }
    return loss_fn, params, inputs()


@case
def outputs_that_are_inputs():
    def loss_fn(params, batch):
        for p in params:
            batch["x"] = dense(p, batch["x"])
        loss = jnp.mean(batch["x"] ** 2)
        aux = (batch["rate"], params[0]["b"], 1.5, jnp.int32(2), loss, params[-1]["b"] * 2)
        return loss, aux

    return loss_fn, layers(3), {"x": inputs(), "rate": np.float32(0.1)}


@case
def whole_numbers_and_truth_across_cuts():
    def loss_fn(params, batch):
        x = dense(params[0], batch["x"])
        best, positive = jnp.argmax(x, -1), x > 0
        unsigned = jnp.abs(x * 10).astype(jnp.uint8)
        for p in params[1:]:
            x = dense(p, x)
        chosen = jnp.take_along_axis(x, best[:, None], -1)
        x = jnp.where(positive, x, 0.1 * x) * unsigned
        return jnp.mean(x**2) + jnp.mean(chosen), (jnp.sum(best), jnp.any(positive))

    return loss_fn, layers(4), {"x": inputs()}


def dropout_case(batch, key_of):
    def loss_fn(params, batch):
        x = batch["x"]
        for k, p in enumerate(params):
            x = dense(p, x)
            kept = key_of(batch["key"], k, x.shape)
            x = jnp.where(kept, x / 0.5, 0)
        return squares(x)

    return loss_fn, layers(4), batch


@case
def dropout_with_one_key():
    def mask(key, k, shape):
        return jax.random.bernoulli(jax.random.fold_in(key, k), 0.5, shape)

    return dropout_case({"x": inputs(), "key": jax.random.key(0)}, mask)


@case
def dropout_with_split_keys():
    def mask(key, k, shape):
        return jax.random.bernoulli(jax.random.split(key, 4)[k], 0.5, shape)

    return dropout_case({"x": inputs(), "key": jax.random.key(0)}, mask)


@case
def dropout_with_a_key_for_each_sample():
    def mask(keys, k, shape):
        return jax.vmap(lambda key: jax.random.bernoulli(jax.random.fold_in(key, k), 0.5, (D,)))(
            keys
        )

    keys = jax.random.split(jax.random.key(0), SAMPLES)
    return dropout_case({"x": inputs(), "key": keys}, mask)


@case
def a_key_that_depends_on_activations():
    def loss_fn(params, batch):
        x, key = batch["x"], batch["key"]
        for p in params:
            x = dense(p, x)
            key = jax.random.fold_in(key, jnp.sum(x > 0))
            x = x * jax.random.uniform(key, x.shape)
        return squares(x)

    return loss_fn, layers(4), {"x": inputs(), "key": jax.random.key(0)}


@case
def scalars_as_parameters():
    def loss_fn(params, x):
        for k in range(4):
            x = jnp.tanh(params[f"scale{k}"] * x + params[f"shift{k}"])
        return squares(x * params["scale0"])

    params = {f"{what}{k}": np.float32(k + 1) for k in range(4) for what in ("scale", "shift")}
    return loss_fn, params, inputs()


@case
def the_loss_is_a_parameter():
    def loss_fn(params, x):
        return params["loss"], jnp.mean(dense(params["layer"], x))

    return loss_fn, {"loss": np.float32(3), "layer": layer(1)}, inputs()


@case
def zero_size_leaves():
    def loss_fn(params, x):
        for p in params["layers"]:
            x = dense(p, x)
        x = jnp.concatenate([x, x[:, :0] @ params["none"], x @ params["empty"]], -1)
        return jnp.mean(x**2) + jnp.sum(params["rows"]), None

    params = {"layers": layers(3), "none": np.zeros((0, D), np.float32)}
    empty = {"empty": np.zeros((D, 0), np.float32), "rows": np.zeros((0,), np.float32)}
    return loss_fn, params | empty, inputs()


class Pair(NamedTuple):
    first: Any
    second: Any


@case
def trees():
    def loss_fn(params, batch):
        x = batch.first[0]
        for p in (params.first[0], params.second["b"], params.second["a"]):
            x = dense(p, x)
        aux = Pair({"a": jnp.sum(x), "b": None}, [jnp.mean(x), ()])
        return jnp.mean((x - batch.second["y"]) ** 2), aux

    params = Pair((layer(1), None), {"a": layer(2), "b": layer(3), "c": []})
    return loss_fn, params, Pair([inputs()], {"y": normal(1, SAMPLES, D)})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Module:
    """A model that is its own tree of parameters, with its function and fields that are none."""

    w: Any
    b: Any
    activation: Any = dataclasses.field(metadata={"static": True})

    def __call__(self, x):
        return self.activation(x @ self.w + self.b)


@case
def modules_as_trees():
    def loss_fn(model, x):
        return squares(functools.reduce(lambda h, f: f(h), model, x))

    kinds = [jnp.tanh, jax.nn.gelu, jax.nn.silu]
    return loss_fn, [Module(**layer(k), activation=f) for k, f in enumerate(kinds)], inputs()


@case
def mixed_dtypes():
    def loss_fn(params, x):
        x = dense(params[0], x.astype(jnp.bfloat16))
        x = dense(params[1], x.astype(jnp.float32))
        x = dense(params[2], x.astype(jnp.float16))
        return squares(x.astype(jnp.float32))

    kinds = [jnp.bfloat16, jnp.float32, jnp.float16]
    params = [jax.tree.map(lambda x, t=t: x.astype(t), layer(k)) for k, t in enumerate(kinds)]
    return loss_fn, params, inputs()


@case
def complex_numbers_across_cuts():
    def loss_fn(params, x):
        x = dense(params[0], x)
        f = jnp.fft.fft(x, axis=-1) * (1 + 2j)
        f = f * (params[1]["b"] + 1)
        f = jnp.fft.ifft(f * jnp.exp(1j * params[2]["b"]), axis=-1)
        return squares(jnp.real(f) @ params[1]["w"] + jnp.imag(f) @ params[2]["w"])

    return loss_fn, layers(3), inputs()


@case
def gradients_stopped():
    def loss_fn(params, x):
        x = dense(params[0], x)
        target = lax.stop_gradient(dense(params[1], x))
        return jnp.mean((dense(params[2], x) - target) ** 2), target.mean()

    return loss_fn, layers(3), inputs()


@case
def gradients_within():
    """A loss that differentiates: the model's derivative by its input is penalised."""

    def loss_fn(params, x):
        def energy(x):
            return jnp.sum(functools.reduce(lambda h, p: dense(p, h), params, x) ** 2)

        value, slope = jax.value_and_grad(energy)(x)
        return value / len(x) + jnp.mean(slope**2), value

    return loss_fn, layers(3), inputs()


@case
def skips():
    """U-Net: early results go to late stages, past those between."""

    def loss_fn(params, x):
        kept = []
        for p in params[:3]:
            x = dense(p, x)
            kept.append(x)
        for p in params[3:]:
            x = dense(p, x) + 0.5 * kept.pop()
        return squares(x)

    return loss_fn, layers(6), inputs()


@case
def one_result_used_by_all_later_stages():
    def loss_fn(params, x):
        first = x = dense(params[0], x)
        for p in params[1:]:
            x = dense(p, x) + first
        return squares(x)

    return loss_fn, layers(5), inputs()


@case
def vmapped():
    def loss_fn(params, x):
        def one(x):
            return functools.reduce(lambda h, p: dense(p, h), params, x)

        return jnp.mean(jax.vmap(one)(x) ** 2), None

    return loss_fn, layers(3), inputs()


@case
def marks():
    def loss_fn(params, x):
        for p in params:
            x, _ = pipeline.boundary((dense(p, x), {}))
        return squares(x)

    return loss_fn, layers(5), inputs()


@case
def flax_linen():
    from flax import linen as nn

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            for _ in range(2):
                y = nn.gelu(nn.Dense(8)(nn.LayerNorm()(x)))
                x = x + nn.Dropout(0.3, deterministic=not train)(nn.Dense(D)(y))
            return nn.MultiHeadDotProductAttention(2)(x[:, None, :])[:, 0]

    net = Net()
    params = jax.tree.map(np.asarray, net.init(jax.random.key(0), inputs(), False))

    def loss_fn(params, batch):
        h = net.apply(params, batch["x"], True, rngs={"dropout": batch["key"]})
        return squares(h)

    return loss_fn, params, {"x": inputs(), "key": jax.random.key(1)}


@case
def flax_nnx():
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.layers = nnx.List([nnx.Linear(D, D, rngs=rngs) for _ in range(3)])
            self.norm = nnx.RMSNorm(D, rngs=rngs)

        def __call__(self, x):
            for f in self.layers:
                x = x + nnx.relu(f(self.norm(x)))
            return x

    graph, params = nnx.split(Net(nnx.Rngs(0)), nnx.Param)

    def loss_fn(params, x):
        return squares(nnx.merge(graph, params)(x))

    return loss_fn, params, inputs()


CUTS = {
    "one": dict(num_partitions=1),
    "2": dict(num_partitions=2),
    "3-gpipe-remat": dict(num_partitions=3, schedule="gpipe", remat=True),
    "4": dict(num_partitions=4),
    "2x2": dict(num_partitions=2, chunks=2, schedule="interleaved"),
}


def assert_same(found, wanted, rtol, atol):
    """Trees of numbers, whatever their dtypes."""

    def close(a, b):
        a, b = (np.asarray(x, np.float64) for x in (a, b))
        np.testing.assert_allclose(
            a, b, rtol=rtol, atol=atol * max(1.0, np.max(np.abs(b), initial=0))
        )

    jax.tree.map(close, found, wanted)


def check(make, cut, number=MICROBATCHES):
    settings = dict(CUTS[cut])
    loss_fn, params, batch = make()
    where = {k: settings.pop(k) for k in ("num_partitions", "chunks") if k in settings}
    plan = pipeline.partition(loss_fn, params, batch, num_microbatches=number, **where)
    wanted = expected(loss_fn, params, batch, plan.microbatches)
    found = loss_and_gradients(plan, params, batch, **settings)
    narrow = make in (scan_of_casts, mixed_dtypes)
    assert_same(found, wanted, *((3e-2, 3e-2) if narrow else (2e-5, 2e-6)))
    for grad, param in zip(*map(jax.tree.leaves, (found[2], params)), strict=True):
        assert (grad.shape, grad.dtype) == (param.shape, param.dtype)
    return plan


LIKE_OTHERS = {
    *("scan_with_ys", "scan_of_scaled_weights", "scan_over_two_halves", "scan_over_time"),
    *("scan_unrolled", "scan_twice_over_the_same", "reverse_scan", "remat_of_all"),
    *("remat_with_names", "remat_of_dots", "dropout_with_one_key", "dropout_with_split_keys"),
}
"""Programs whose mechanisms other rows have as well."""


@pytest.mark.parametrize("name", rows(CASES, [name for name in CASES if name not in LIKE_OTHERS]))
def test_four_stages(name):
    assert check(CASES[name], "4").num_stages == 4


@pytest.mark.parametrize(
    ("make", "cut"),
    [
        pytest.param(
            make,
            [name for name in CUTS if name != "4"][k % 4],
            marks=[nightly] * (k % 3 > 0),
        )
        for k, make in enumerate(CASES.values())
    ],
    ids=lambda x: x if isinstance(x, str) else x.__name__,
)
def test_other_cuts(make, cut):
    check(make, cut)


UNEQUAL = [mlp, remat_of_all, scan_with_ys, custom_vjp, dropout_with_a_key_for_each_sample]


@pytest.mark.parametrize("make", UNEQUAL, ids=lambda make: make.__name__)
def test_micro_batches_of_two_sizes(make):
    plan = check(make, "2", number=4)
    assert sorted(set(plan.microbatches.sizes)) == [1, 2]


def test_every_process_finds_the_same_plan():
    """Processes trace for themselves: an equation's results must cross a cut in one order."""

    def loss_fn(params, batch):
        x = batch @ params["first"]
        many = lax.fori_loop(0, 2, lambda _, many: jax.tree.map(jnp.sin, many), (x,) * 8)
        x = functools.reduce(lambda a, b: jnp.tanh(a) * 2 - b, many) @ params["last"]
        return jnp.mean(x**2)

    params = {"first": normal(0, D, D), "last": normal(1, D, D)}
    plans = [
        pipeline.partition(loss_fn, params, inputs(), num_partitions=2, boundaries=[2])
        for _ in range(10)
    ]
    for plan in plans:
        made = [var for eqn in plan.parts[max(plan.parts)].program.eqns for var in eqn.outvars]
        (received,) = plan.stages[1].receives.values()
        assert len(received) == 8
        assert [made.index(var) for var in received] == sorted(map(made.index, received))
    assert len({plan.digest() for plan in plans}) == 1


def test_parts_of_a_rematerialised_call(monkeypatch):
    """Parts of several equations, some of which make more than one result."""
    monkeypatch.setattr(_trace, "_REMAT_PARTS", 4)

    def make():
        loss_fn, params, batch = one_result_used_by_all_later_stages()
        return lambda params, x: jax.checkpoint(loss_fn)(params, x), params, batch

    plan = check(make, "4")
    assert sum(eqn.primitive.name in _equations.REMAT for eqn in plan.parts[2].program.eqns) == 4
