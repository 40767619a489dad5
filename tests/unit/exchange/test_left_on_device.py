"""A start leaves on a GPU only what its function can copy as it is; the attribute says how much."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jdaso
from jdaso._exchange.make import exchange_of
from jdaso._jax.host_call import host_call

ABOUT = (jnp.int32(1), jnp.int32(2))


def copied_before_the_call(*leaves):
    with jdaso.Session() as session:
        exchange = exchange_of(leaves, session, wire="float32", owner=1)

        def send(*leaves):
            function = lambda *_: np.zeros((), np.int32)  # noqa: E731
            return exchange.send(function, jnp.int32(0), ABOUT, leaves)

        equations = jax.make_jaxpr(send)(*leaves).eqns
    (call,) = (x for x in equations if x.primitive.name == "jdaso_host_call")
    return call.params["to_host"]


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_what_is_kept_as_it_is_stays(dtype):
    assert copied_before_the_call(jnp.zeros(5, dtype), jnp.zeros((2, 3))) == len(ABOUT)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn"])
def test_what_the_host_converts_is_copied_first(dtype):
    assert copied_before_the_call(jnp.zeros((2, 3)), jnp.zeros(5, dtype)) == len(ABOUT) + 2


@pytest.mark.parametrize(("to_host", "found"), [(1, 1), (None, 3)])
def test_the_program_has_the_attribute(to_host, found):
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    call = lambda *x: host_call(lambda *_: np.float32(0), shape, *x, to_host=to_host)  # noqa: E731
    given = jnp.zeros(2), jnp.zeros(3), jnp.zeros(4)
    text = jax.jit(call).trace(*given).lower(lowering_platforms=("cuda",)).as_text()
    if "jdaso_call" not in text:
        pytest.skip("there is no library here")
    assert f"to_host = {found} : i64" in text
