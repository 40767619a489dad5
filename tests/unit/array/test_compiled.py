"""Programs around operations between nodes that are refused. The others: tests/ranks/array."""

from unittest.mock import create_autospec

import jax
import jax.numpy as jnp
import pytest

import jdaso.array as ja
from jdaso import Session
from jdaso.array._connected import Connected
from jdaso.array._layout import ArrayLayout


@pytest.mark.parametrize("function", [lambda x: ja.sum(x), lambda x: x @ x.T])
def test_nodes_of_several_devices_are_refused(function):
    about = dict(control=None, node=0, num_nodes=2, devices=["a", "b"])
    several = create_autospec(Session, instance=True, **about)
    x = ja.Array(jnp.ones((2, 3)), ArrayLayout((4, 3), 0, (2, 2)), Connected(several))
    with pytest.raises(NotImplementedError, match="several devices, and this one has 2"):
        jax.jit(function)(x)
