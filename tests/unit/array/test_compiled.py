"""Programs around operations between nodes: what is refused. The others: tests/ranks/array."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

import jdaso.array as ja
from jdaso.array._layout import Layout
from jdaso.array._world import Connected


@pytest.mark.parametrize("function", [lambda x: ja.sum(x), lambda x: x @ x.T])
def test_nodes_of_several_devices_are_refused(function):
    session = SimpleNamespace(control=None, node=0, num_nodes=2, devices=["a", "b"])
    x = ja.Array(jnp.ones((2, 3)), Layout((4, 3), 0, (2, 2)), Connected(session))
    with pytest.raises(NotImplementedError, match="several devices, and this one has 2"):
        jax.jit(function)(x)
