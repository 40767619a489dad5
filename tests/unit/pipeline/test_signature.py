"""Texts of equations are equal only where the same is computed, derivatives included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jdaso.pipeline._plan.signature import Signatures

X = jnp.ones((3, 4), jnp.float32)


def text(function, *args, signatures=None, **options):
    signatures = signatures or Signatures(**options)
    jaxpr = jax.make_jaxpr(function)(*(args or (X,))).jaxpr
    return signatures.of(jaxpr.eqns, [*jaxpr.constvars, *jaxpr.invars], jaxpr.outvars)


def with_jvp(factor):
    """The same values whatever the factor, another derivative for each."""
    f = jax.custom_jvp(lambda x: jnp.sin(x))
    f.defjvp(lambda primals, tangents: (f(*primals), factor * tangents[0]))
    return f


def with_vjp(factor, backward=None):
    f = jax.custom_vjp(lambda x: jnp.sin(x))
    f.defvjp(lambda x: (f(x), factor * x), backward or (lambda kept, g: (kept * g,)))
    return f


def in_scan(f):
    return lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0]


def in_cond(f):
    return lambda x: jax.lax.cond(x[0, 0] > 0, f, lambda y: y, x)


def in_while(f):
    return lambda x: jax.lax.while_loop(lambda c: c[0, 0] < 0, f, x)


def in_scan_of_remat(f):
    return in_scan(jax.checkpoint(f))


PLACES = [lambda f: f, jax.jit, jax.checkpoint, in_scan, in_cond, in_scan_of_remat]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", [with_jvp, with_vjp])
def test_derivatives_are_distinguished_wherever_they_are_hidden(kind, place):
    one, other = text(place(kind(2.0))), text(place(kind(3.0)))
    assert one != other
    assert one == text(place(kind(2.0)))
    forward = {"derivatives": False}
    assert text(place(kind(2.0)), **forward) == text(place(kind(3.0)), **forward)


def test_forward_rules_that_share_a_backward_rule_are_distinguished():
    def backward(kept, g):
        return (kept * g,)

    signatures = Signatures()
    one, other = (text(with_vjp(k, backward), signatures=signatures) for k in (2.0, 3.0))
    assert one != other


def test_arrays_that_rules_hold_count_by_all_of_their_bits():
    values = np.zeros((3, 4096), np.float32)
    changed = values.copy()
    changed[1, 2000] = 1  # in the middle, which a printed array leaves out
    assert str(values) == str(changed)
    x = jnp.ones((3, 4096), jnp.float32)
    arrays = map(jnp.asarray, (values, values.copy(), changed))
    one, same, other = (text(in_scan(with_vjp(array)), x) for array in arrays)
    assert one == same != other


def test_names_do_not_matter_and_order_does():
    signatures = Signatures()
    assert text(lambda x: x * 2 + 1) == text(lambda y: y * 2 + 1)
    two = [text(f, X, X, signatures=signatures) for f in (lambda a, b: a - b, lambda a, b: b - a)]
    assert two[0] != two[1]


@pytest.mark.parametrize(
    "other",
    [
        lambda x: x * 3,
        lambda x: x * 2.0 + 0.0,
        lambda x: (x * 2).astype(jnp.bfloat16),
        lambda x: jax.lax.reduce_precision(x, 8, 7),
        lambda x: in_while(lambda c: c * 2)(x),
        lambda x: jax.lax.slice(x * 2, (0, 0), (2, 4)),
    ],
)
def test_computations_are_distinguished(other):
    assert text(lambda x: x * 2) != text(other)
    assert text(other) == text(other)


def test_shapes_are_distinguished():
    assert text(jnp.sin, X) != text(jnp.sin, X[:2])


def test_a_rule_that_raises_is_distinguished_by_itself():
    def raising():
        f = jax.custom_jvp(jnp.sin)

        @f.defjvp
        def rule(primals, tangents):
            raise ValueError("no derivative")

        return f

    signatures = Signatures()
    f = raising()
    closed = jax.make_jaxpr(f)(X)
    (eqn,) = closed.eqns
    assert signatures.about(eqn) == signatures.about(eqn)
    assert text(f, signatures=signatures) != text(raising(), signatures=signatures)


def test_solvers_are_distinguished_by_their_problems():
    def solved(steps):
        def function(x):
            return jax.scipy.sparse.linalg.cg(lambda v: 2 * v, x[0], maxiter=steps)[0]

        return function

    for options in ({}, {"derivatives": False}):
        assert text(solved(1), **options) == text(solved(1), **options)
        assert text(solved(1), **options) != text(solved(50), **options)


def with_callback():
    return lambda x: jax.pure_callback(lambda y: y, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@pytest.mark.parametrize("identities", [True, False])
def test_functions_count_by_their_identity_or_by_their_type(identities):
    one, other = (text(with_callback(), identities=identities) for _ in range(2))
    assert (one != other) == identities


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", [with_jvp, with_vjp])
def test_derivatives_are_distinguished_without_identities(kind, place):
    one, same, other = (text(place(kind(k)), identities=False) for k in (2.0, 2.0, 3.0))
    assert one == same != other
