"""Sums of many leaves in one operation: the numbers of separate ones, by both ways."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdaso._jax.ffi import library
from jdaso._payload.chains import behind, by_leaf

SHAPES = [(), (3,), (0,), (7, 5), (600_001,)]
"""The last is of three parts, and one block more."""


@pytest.fixture(autouse=True, params=["auto", "off"])
def way(request, monkeypatch):
    """One call of `chain.h`, or XLA's loops, by the variable that chooses it."""
    monkeypatch.setenv("JDASO_FFI", request.param)
    if request.param == "auto" and library.target(("cpu",), 1) is None:
        pytest.skip("there is no C++ compiler")
    return request.param


def leaves(seed, dtype=np.float32):
    random = np.random.default_rng(seed)
    found = [random.normal(size=x) * 10.0 ** random.integers(-3, 4, x) for x in SHAPES]
    return [jnp.asarray(np.asarray(x, dtype)) for x in found]


def formula(a, b, c, d):
    return ((a + b) + c) - d


def same(found, expected):
    for x, y in zip(found, expected, strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(
            np.asarray(x).view(f"u{x.dtype.itemsize}"), np.asarray(y).view(f"u{x.dtype.itemsize}")
        )


@pytest.mark.parametrize("into", [None, 0, 1, 2, 3])
def test_each_operation_rounds_and_operands_stay(into, way):
    groups = [leaves(seed) for seed in range(4)]
    wanted = [np.asarray(x) + np.asarray(y) for x, y in zip(groups[0], groups[1], strict=True)]
    wanted = [x + np.asarray(y) for x, y in zip(wanted, groups[2], strict=True)]
    wanted = [jnp.asarray(x - np.asarray(y)) for x, y in zip(wanted, groups[3], strict=True)]

    @jax.jit
    def step(*groups):
        groups = [[2 * x for x in group] for group in groups]  # memory that may be overwritten
        return by_leaf("++-", formula, *groups, into=into), groups

    found, after = step(*groups)
    same(found, [2 * x for x in wanted])
    for mine, group in zip(after, groups, strict=True):
        same(mine, [2 * x for x in group])
    text = step.lower(*groups).as_text()
    assert len(re.findall(r"custom_call @jdaso_chain", text)) == (way == "auto")


def test_numbers_that_are_not_finite_or_too_small_for_floats_are_treated_as_xla_does():
    hard = jnp.asarray(
        np.array([np.inf, -np.inf, np.nan, 1e-40, -1e-40, 1.2e-38, -0.0], np.float32)
    )
    a, b = (x.ravel() for x in jnp.meshgrid(hard, hard))
    found = jax.jit(lambda a, b: by_leaf("-", jnp.subtract, [a], [b]))(a, b)
    np.testing.assert_array_equal(found[0], jax.jit(jnp.subtract)(a, b))


@pytest.mark.parametrize("dtype", ["bfloat16", "complex64"])
def test_leaves_of_other_dtypes_go_by_the_formula(dtype):
    mixed = [[*leaves(seed), *leaves(seed + 9, dtype)] for seed in (0, 1)]
    found = jax.jit(lambda *x: by_leaf("+", lambda a, b: 3 * a + b, *x))(*mixed)
    n = len(SHAPES)
    same(found[:n], [a + b for a, b in zip(mixed[0][:n], mixed[1][:n], strict=True)])
    ours = jax.jit(lambda *x: [3 * a + b for a, b in zip(*x, strict=True)])(*(x[n:] for x in mixed))
    np.testing.assert_array_equal(found[-1], ours[-1])


def test_it_works_out_of_a_program_under_vmap_and_in_a_branch():
    groups = [[x for x in leaves(seed) if x.size < 1000] for seed in (2, 3)]
    wanted = [a + b for a, b in zip(*groups, strict=True)]
    chained = lambda *x: by_leaf("+", jnp.add, *x)  # noqa: E731
    same(chained(*groups), wanted)
    stacked = [[jnp.stack([x, 2 * x]) for x in group] for group in groups]
    for k, found in enumerate(jax.vmap(chained)(*stacked)):
        same(found, [wanted[k], 2 * wanted[k]])
    branch = lambda due, *x: jax.lax.cond(due, chained, lambda a, _: a, *x)  # noqa: E731
    same(jax.jit(branch)(True, *groups), wanted)
    same(jax.jit(branch)(False, *groups), groups[0])


def test_old_numbers_are_overwritten_in_place_behind_what_reads_them(way):
    """Updates of Adam's kind read moments that the step replaces: alone, XLA copies both."""
    size = 100_000
    gradient = jnp.asarray(np.random.default_rng(0).normal(size=size), jnp.float32)

    def compiled(ordered):
        def step(params, first, second, gradient):
            updates = (0.9 * first + gradient) / jnp.sqrt(0.3 * second + first * first)
            if ordered:
                (first, second), (updates,) = behind([first, second], [updates])
            return params - updates, 0.9 * first + gradient, 0.99 * second + gradient * gradient

        step = jax.jit(step, donate_argnums=(0, 1, 2))
        return step.lower(*[jnp.ones(size)] * 4).compile()

    given = lambda: (*[jnp.ones(size)] * 3, gradient)  # noqa: E731
    ordered, joined = compiled(True), compiled(False)
    same(ordered(*map(jnp.copy, given())), joined(*map(jnp.copy, given())))
    copies = ordered.memory_analysis().temp_size_in_bytes / gradient.nbytes
    assert copies < (1.1 if way == "auto" else 2.1)
