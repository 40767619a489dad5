"""Updates of trees that are empty arrays for the most part."""

import jax
import jax.numpy as jnp
import numpy as np

from jdaso.pipeline._run.nonempty import NonEmpty


def trees():
    given_up = {"a": jnp.arange(3.0), "empty": jnp.zeros((0,)), "scalar": jnp.float32(2)}
    return given_up, jax.tree.map(lambda x: x + 1, given_up)


def update(given_up, kept):
    made = jax.tree.map(jnp.add, given_up, kept)
    return made, {"count": jnp.int32(1), "rows": jnp.zeros((0, 4), jnp.bfloat16)}


def test_does_what_jit_does_and_gives_buffers_up():
    expected = jax.jit(update)(*trees())
    given_up, kept = trees()
    function = NonEmpty(update)
    for _ in range(2):
        made = function(given_up, kept)
        jax.tree.map(np.testing.assert_array_equal, made, expected)
        assert jax.tree.map(jax.typeof, made) == jax.tree.map(jax.typeof, expected)
        assert all(x.is_deleted() for x in jax.tree.leaves(given_up) if x.size)
        given_up, _ = trees()


def test_the_program_knows_of_no_empty_array(monkeypatch):
    shapes = []
    plain = jax.jit

    def spy(run, **options):
        def noted(*args):
            made = run(*args)
            shapes.extend(x.shape for x in jax.tree.leaves((args, made)))
            return made

        return plain(noted, **options)

    monkeypatch.setattr(jax, "jit", spy)
    NonEmpty(update)(*trees())
    assert sorted(shapes) == sorted([(3,), (), (3,), (), (3,), (), ()])
