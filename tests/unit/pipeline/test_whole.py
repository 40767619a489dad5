"""Optimizers of one rank's parameters, against the same optimizer of the whole tree.

Ranks are threads that meet in a barrier. Operations that are impossible over partitions must raise.
"""

import functools
import random

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from network import World
from nights import rows
from optax import contrib
from pipeline_in_process import COMPILING_SECONDS, OF_MAIL, gatherer, together

from jdaso.pipeline._optimizer.whole import WholeOptimizer
from jdaso.pipeline._plan.holding import Holding, Unit

STEPS = 3


def tree(seed, scale=1.0):
    def normal(*shape):
        return (scale * rng.normal(size=shape)).astype(np.float32)

    rng = np.random.default_rng(seed)
    return {
        "embedding": normal(5, 3),
        "layers": {"b": normal(6, 3), "w": normal(6, 3, 3)},  # stacked: six layers
        "learning_rate_of_heads": normal(2),
        "norm": [normal(3), normal(3)],
        "scale": normal(),
        "w": normal(3, 4),
    }


def holding_of(params, ranks, assign):
    """Holds the units of each leaf as `assign(leaf, rows)` gives: pairs of an end and a rank."""
    leaves, structure = jax.tree.flatten(params)
    units = []
    for k, leaf in enumerate(leaves):
        begin = 0
        for end, rank in assign(k, leaf.shape[0] if leaf.ndim else 1):
            units.append(Unit(k, begin, end, (rank,)))
            begin = end
    scalars = tuple(k for k, leaf in enumerate(leaves) if not leaf.ndim)
    shapes = tuple(leaf.shape or (1,) for leaf in leaves)
    dtypes = tuple(leaf.dtype for leaf in leaves)
    return Holding(structure, scalars, shapes, dtypes, tuple(units), ranks)


def by_leaf(params, ranks, seed=0):
    """Gives each leaf to one rank."""
    chance = random.Random(seed)
    return holding_of(params, ranks, lambda k, rows: [(rows, chance.randrange(ranks))])


def by_row(params, ranks):
    """The rows of `layers` are shared out, unequally; the other leaves go round."""
    stacked = [
        any(x is leaf for x in params["layers"].values()) for leaf in jax.tree.leaves(params)
    ]
    ends = [1 + 6 * (k + 1) // ranks for k in range(ranks - 1)] + [6]
    shares = list(zip(ends, range(ranks), strict=True))
    return holding_of(params, ranks, lambda k, rows: shares if stacked[k] else [(rows, k % ranks)])


def gradients(steps=STEPS):
    return [tree(10 + k, 0.3) for k in range(steps)]


def plain(optimizer, params, grads, values):
    optimizer = optax.with_extra_args_support(optimizer)
    update = jax.jit(lambda g, s, p, v: optimizer.update(g, s, p, value=v))
    state = jax.jit(optimizer.init)(params)
    for grad, value in zip(grads, values, strict=True):
        updates, state = update(grad, state, params, value)
        params = optax.apply_updates(params, updates)
    return params


def partitioned(optimizer, params, grads, values, holding):
    """Returns the final parameters and state of each rank, and the number of messages."""
    world = World(holding.ranks, limit_seconds=COMPILING_SECONDS)

    def train(node):
        rank = node.number
        own = jax.tree.map(jnp.asarray, holding.own(jax.tree.leaves(params), rank))
        tx = WholeOptimizer(optimizer, holding, rank, gatherer(node)).transformation
        with world.clock.lent():
            state = jax.block_until_ready(tx.init(own))
        update = jax.jit(lambda g, s, p, v: tx.update(g, s, p, value=v))
        for grad, value in zip(grads, values, strict=True):
            grad = holding.own(jax.tree.leaves(grad), rank)
            with world.clock.lent():
                updates, state = jax.block_until_ready(update(grad, state, own, value))
            own = optax.apply_updates(own, updates)
        return jax.block_until_ready(own)

    found = together(world, train)
    messages = world.calls.count((0, "Iallgather", OF_MAIL))
    return found, messages


def check(optimizer, holding_of_params, *, params=None, grads=None, rtol=2e-5, atol=2e-6):
    params = tree(0) if params is None else params
    grads = gradients() if grads is None else grads
    values = [np.float32(3 - 0.5 * k) for k in range(len(grads))]
    holding = holding_of_params(params)
    found, messages = partitioned(optimizer, params, grads, values, holding)
    wanted = plain(optimizer, params, grads, values)
    assert not all(
        np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (params, wanted)), strict=True)
    )
    for rank, own in enumerate(found):
        expected = holding.own(jax.tree.leaves(wanted), rank)
        jax.tree.map(
            functools.partial(np.testing.assert_allclose, rtol=rtol, atol=atol), own, expected
        )
    return messages


def no_vectors(params):
    return jax.tree.map(lambda x: x.ndim > 1, params)


def labels(params):
    return jax.tree.map(lambda x: "many" if x.ndim > 1 else "few", params)


def warm(peak):
    return optax.warmup_cosine_decay_schedule(0.0, peak, 2, 10)


# By their needs: nothing of other ranks; numbers of whole arrays or trees.
LOCAL = {
    "sgd": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: optax.adam(1e-2),
    "adamw-masked": lambda: optax.adamw(1e-2, weight_decay=0.1, mask=no_vectors),
    "adamw-schedule": lambda: optax.adamw(warm(1e-2)),
    "nadam": lambda: optax.nadam(1e-2),
    "rmsprop": lambda: optax.rmsprop(1e-2, momentum=0.9),
    "lion": lambda: optax.lion(1e-2),
    "adabelief": lambda: optax.adabelief(1e-2),
    "adan": lambda: optax.adan(1e-2),
    "radam": lambda: optax.radam(1e-2),
    "rprop": lambda: optax.rprop(1e-2),
    "clip": lambda: optax.chain(optax.clip(0.1), optax.sgd(0.1)),
    "ema": lambda: optax.chain(optax.ema(0.9), optax.sgd(0.1)),
    "apply_every": lambda: optax.chain(optax.apply_every(2), optax.sgd(0.1)),
    "multi_steps": lambda: optax.MultiSteps(optax.adam(1e-2), 2).gradient_transformation(),
    "masked": lambda: optax.masked(optax.adam(1e-2), no_vectors),
    "multi_transform": lambda: optax.multi_transform(
        {"many": optax.adam(1e-2), "few": optax.sgd(0.1)}, labels
    ),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.adamw)(warm(1e-2), b1=0.8),
    "schedule_free": lambda: contrib.schedule_free(optax.sgd(0.1), 0.1, b1=0.9),
    "schedule_free_adamw": lambda: contrib.schedule_free_adamw(1e-2),
    "polyak_sgd-lr": lambda: optax.chain(optax.sgd(0.1), contrib.reduce_on_plateau()),
    "adopt": lambda: contrib.adopt(1e-2),
    "ademamix": lambda: contrib.ademamix(1e-2),
    "madgrad": lambda: contrib.madgrad(1e-2),
    "cocob": lambda: contrib.cocob(),
    "keep_nonnegative": lambda: optax.chain(optax.sgd(0.1), optax.keep_params_nonnegative()),
    "freeze": lambda: optax.chain(
        optax.freeze({**jax.tree.map(lambda _: False, tree(0)), "w": True}), optax.sgd(0.1)
    ),
    "muon": lambda: contrib.muon(1e-2),
    "centralize": lambda: optax.chain(optax.centralize(), optax.sgd(0.1)),
    "acprop": lambda: contrib.acprop(1e-2),
    "galore": lambda: contrib.galore(1e-2, rank=2),
    "adadelta": lambda: optax.adadelta(0.1),
}
REDUCING = {
    "zero_nans": lambda: optax.chain(optax.zero_nans(), optax.sgd(0.1)),
    "lamb": lambda: optax.lamb(1e-2),
    "lars": lambda: optax.lars(0.1),
    "fromage": lambda: optax.fromage(1e-2),
    "novograd": lambda: optax.novograd(1e-2),
    "adafactor": lambda: optax.adafactor(1e-2),
    "adafactor-factored": lambda: optax.adafactor(1e-2, min_dim_size_to_factor=2),
    "clip_by_global_norm": lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-2)),
    "clips": lambda: optax.chain(
        optax.clip_by_global_norm(0.5), optax.sgd(0.1), optax.clip_by_global_norm(0.01)
    ),
    "adaptive_grad_clip": lambda: optax.chain(optax.adaptive_grad_clip(0.1), optax.sgd(0.1)),
    "clip_by_block_rms": lambda: optax.chain(optax.clip_by_block_rms(0.1), optax.sgd(0.1)),
    "param_block_rms": lambda: optax.chain(optax.scale_by_param_block_rms(), optax.sgd(0.1)),
    "param_block_norm": lambda: optax.chain(optax.scale_by_param_block_norm(), optax.sgd(0.1)),
    "trust_ratio": lambda: optax.chain(optax.scale_by_trust_ratio(), optax.sgd(0.1)),
    "normalize_by_update_norm": lambda: optax.chain(
        optax.normalize_by_update_norm(), optax.sgd(0.1)
    ),
    "normalize": lambda: optax.chain(contrib.normalize(), optax.sgd(0.1)),
    "apply_if_finite": lambda: optax.apply_if_finite(optax.adam(1e-2), 2),
    "multi_steps-skipping": lambda: optax.MultiSteps(
        optax.adam(1e-2), 2, should_skip_update_fn=optax.skip_not_finite
    ).gradient_transformation(),
    "multi_steps-clip": lambda: optax.MultiSteps(
        optax.chain(optax.clip_by_global_norm(0.1), optax.adam(1e-2)), 2
    ).gradient_transformation(),
    "multi_transform-clip": lambda: optax.multi_transform(
        {
            "many": optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.1)),
            "few": optax.lamb(0.1),
        },
        labels,
    ),
    "inject_hyperparams-clip": lambda: optax.inject_hyperparams(
        lambda learning_rate, limit: optax.chain(
            optax.clip_by_global_norm(limit), optax.sgd(learning_rate)
        )
    )(0.1, limit=0.3),
    "polyak_sgd": lambda: optax.polyak_sgd(),
    "dog": lambda: contrib.dog(1.0),
    "dowg": lambda: contrib.dowg(1.0),
    "prodigy": lambda: contrib.prodigy(1.0),
    "dadapt_adamw": lambda: contrib.dadapt_adamw(1.0),
    "mechanize": lambda: contrib.mechanize(optax.sgd(0.1)),
    "momo": lambda: contrib.momo(0.1),
    "momo_adam": lambda: contrib.momo_adam(0.1),
}
ALL = LOCAL | REDUCING

# Their use of an array's rows depends on all of them.
REFUSED = [
    "adafactor",
    "adafactor-factored",
    "adaptive_grad_clip",
    "clip_by_block_rms",
    "galore",
    "muon",
    "param_block_rms",
]

BY_DAY = [
    *REDUCING,
    *("adamw-masked", "adamw-schedule", "multi_transform", "inject_hyperparams", "schedule_free"),
]
by_name = pytest.mark.parametrize("name", rows(ALL, BY_DAY))


@by_name
def test_leaves_of_two_ranks(name):
    messages = check(ALL[name](), lambda params: by_leaf(params, 2, seed=len(name)))
    assert (messages > 0) == (name in REDUCING)


ROWS = ["adamw-masked", "muon", "galore", "inject_hyperparams", "multi_transform", "multi_steps"]


@pytest.mark.parametrize("name", [*ROWS, *REDUCING])
def test_rows_of_two_ranks(name):
    try:
        check(ALL[name](), lambda params: by_row(params, 2))
    except NotImplementedError as error:
        assert "num_partitions=1" in str(error)
        assert name in REFUSED
    else:
        assert name not in REFUSED


SOME = ["adamw-masked", "lamb", "clip_by_global_norm", "multi_transform-clip", "novograd"]


@pytest.mark.parametrize(("name", "seed"), [(name, k) for k, name in enumerate(SOME)])
def test_four_ranks_of_which_some_hold_nothing(name, seed):
    check(ALL[name](), lambda params: by_leaf(params, 4, seed))


@pytest.mark.parametrize("name", ["lamb", "clips"])
def test_rows_of_three_ranks(name):
    check(ALL[name](), lambda params: by_row(params, 3))


@pytest.mark.parametrize("leaf", range(8))
def test_a_nan_of_one_rank_stops_all(leaf):
    """A NaN in any leaf, scalars too, stops all; all ranks take the same branch."""
    params, grads = tree(0), gradients(4)
    leaves, structure = jax.tree.flatten(grads[1])
    leaves[leaf] = np.full_like(leaves[leaf], np.nan)
    grads[1] = jax.tree.unflatten(structure, leaves)
    optimizer = optax.apply_if_finite(optax.adam(1e-2), 3)
    check(optimizer, lambda params: by_leaf(params, 2, seed=leaf), params=params, grads=grads)


def test_a_branch_that_a_parameter_of_one_rank_decides():
    """The parameter is 0 on the other ranks, which alone would take the other branch."""

    def update(grads, params):
        del params
        return jax.lax.cond(
            grads["scale"] ** 2 > 0, lambda: grads, lambda: jax.tree.map(jnp.negative, grads)
        )

    check(optax.stateless(update), lambda params: by_leaf(params, 2))


def test_a_nan_in_a_row_stops_all():
    grads = gradients()
    grads[0]["layers"]["w"][5, 0, 0] = np.inf
    check(ALL["apply_if_finite"](), lambda params: by_row(params, 2), grads=grads)


def test_hyperparameters_named_as_parameters():
    """The state has b1, b2 and eps for all; it is not about the biases b1 and b2."""
    params = {name: x for name, x in zip(("b1", "b2", "w1", "w2"), normal_arrays(0), strict=True)}
    grads = [dict(zip(params, normal_arrays(k), strict=True)) for k in (1, 2)]
    optimizer = optax.inject_hyperparams(optax.adam)(1e-2)
    check(optimizer, lambda params: by_leaf(params, 2, seed=1), params=params, grads=grads)


def normal_arrays(seed):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=n).astype(np.float32) for n in (2, 3, 4, 5)]


def test_a_list_of_parameters_and_states_that_are_lists():
    """sm3 holds for each parameter a list of vectors, distinguished by the same numbers."""
    params, grads = [x + 1 for x in normal_arrays(0)], [normal_arrays(k) for k in (1, 2)]
    check(optax.sm3(0.1), lambda params: by_leaf(params, 2, seed=3), params=params, grads=grads)


def test_one_array_of_which_ranks_hold_rows():
    rng = np.random.default_rng(0)
    params, *grads = (rng.normal(size=(6, 2)).astype(np.float32) for _ in range(3))
    holding = lambda params: holding_of(params, 2, lambda k, rows: [(2, 0), (6, 1)])  # noqa: E731
    check(ALL["clip_by_global_norm"](), holding, params=params, grads=grads)


@pytest.mark.parametrize(
    "make",
    [
        lambda: optax.flatten(optax.adam(1e-2)),
        lambda: optax.chain(optax.flatten(optax.clip_by_global_norm(0.1)), optax.sgd(0.1)),
    ],
    ids=["flatten", "flatten-clip"],
)
def test_arrays_of_several_ranks_joined_are_refused(make):
    with pytest.raises(NotImplementedError, match=r"optax\.flatten .* num_partitions=1"):
        check(make(), lambda params: by_leaf(params, 2))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x - jnp.mean(x),
        lambda x: x * x.size,
        lambda x: x - x[:1],
        lambda x: jnp.cumsum(x, 0),
        lambda x: x[::-1],
        lambda x: jnp.sort(x, 0),
        lambda x: x / jnp.linalg.norm(x, axis=0),
        lambda x: (x.reshape(len(x), -1) @ x.reshape(len(x), -1).T) @ x.reshape(len(x), -1),
        lambda x: jax.lax.fori_loop(0, 2, lambda _, y: y / jnp.sum(y), x),
        lambda x: (x.T * jnp.arange(len(x))).T,
        lambda x: x.at[0].multiply(0),
        lambda x: x / jnp.sum(jnp.ones_like(x)),
        lambda x: x + jax.random.normal(jax.random.key(0), x.shape),
    ],
)
def test_rows_that_are_mixed_are_refused(function):
    def update(grads, params):
        layers = jax.tree.map(lambda x: function(x).reshape(x.shape), grads["layers"])
        return {**grads, "layers": layers}

    with pytest.raises(NotImplementedError, match="num_partitions=1"):
        check(optax.stateless(update), lambda params: by_row(params, 2))


def test_a_number_that_one_rank_keeps_is_known_to_all():
    """The last step's norm, of which a parameter that is a number is a part."""

    def update(grads, norm, params=None):
        del params
        return jax.tree.map(lambda g: g / (1 + norm), grads), optax.tree.norm(grads)

    previous = optax.GradientTransformation(lambda params: jnp.zeros(()), update)
    check(previous, lambda params: by_leaf(params, 2))


def test_arrays_that_are_kept_in_another_tree_stay_with_whom_they_are_about():
    def update(grads, kept, params=None):
        del params
        norm = 1 + optax.tree.norm(kept)  # of all of them, as the step before left them
        kept = [0.9 * a + b for a, b in zip(kept, jax.tree.leaves(grads), strict=True)]
        return jax.tree.map(lambda x: x / norm, jax.tree.unflatten(tree_of(grads), kept)), kept

    def init(params):
        return [jnp.zeros_like(x) for x in jax.tree.leaves(params)]

    tree_of = jax.tree.structure
    check(optax.GradientTransformation(init, update), lambda params: by_leaf(params, 2))


@pytest.mark.parametrize(("name", "messages"), [("clip_by_global_norm", 1), ("clips", 2)])
def test_numbers_that_do_not_depend_on_each_other_travel_together(name, messages):
    """A global norm of seven arrays: one message a step."""

    def arrays(seed):
        return {name: x for name, x in tree(seed).items() if name != "scale"}

    both = dict(params=arrays(0), grads=[arrays(k) for k in (1, 2)])
    assert check(ALL[name](), lambda params: by_leaf(params, 2), **both) == 2 * messages
