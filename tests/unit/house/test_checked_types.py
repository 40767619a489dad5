"""Wrong types and shapes fail at the call, as the tests' runs check them."""

import importlib
import sys

import checked_types
import jax.numpy as jnp
import jaxtyping
import pytest

MODULE = """
from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from jaxtyping import Array, Float

if TYPE_CHECKING:
    from elsewhere import Unknown


def plain(count: int, seconds: float = 1.0) -> str:
    return "x" * count if count < 9 else count


def shaped(x: Float[Array, "n m"], y: Float[Array, " m"]) -> Float[Array, " n"]:
    return x @ y if x.shape[0] < 9 else y


def nested(x: list[Float[Array, "2"]]) -> None:
    pass


def unknown(x: Unknown, count: int) -> None:
    pass


def outer():
    def inner(x: int) -> int:
        return x

    return inner


class Methods:
    kept: int = 1

    def method(self, x: int) -> None:
        pass

    @staticmethod
    def static(x: int) -> None:
        pass

    @classmethod
    def of(cls, x: int) -> Methods:
        return cls()

    @property
    def wrong(self) -> int:
        return "no number"


@dataclasses.dataclass(frozen=True)
class Data:
    x: int


class Pair(NamedTuple):
    x: int
"""
WRONG = {
    "an argument": lambda m: m.plain("two"),
    "a default's type": lambda m: m.plain(2, seconds="long"),
    "a result": lambda m: m.plain(10),
    "a rank": lambda m: m.shaped(jnp.ones(2), jnp.ones(2)),
    "a size that is used twice": lambda m: m.shaped(jnp.ones((2, 3)), jnp.ones(2)),
    "a result's shape": lambda m: m.shaped(jnp.ones((10, 3)), jnp.ones(3)),
    "a dtype": lambda m: m.shaped(jnp.ones((2, 3), int), jnp.ones(3)),
    "an element's shape": lambda m: m.nested([jnp.ones(3)]),
    "an argument beside one of an unknown type": lambda m: m.unknown(object(), "two"),
    "a closure's": lambda m: m.outer()("two"),
    "a method's": lambda m: m.Methods().method("two"),
    "a static method's": lambda m: m.Methods.static("two"),
    "a class method's": lambda m: m.Methods.of("two"),
    "a property's": lambda m: m.Methods().wrong,
    "a field": lambda m: m.Data("two"),
}


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    """A module that was imported under the hook."""
    folder, before = tmp_path_factory.mktemp("checked"), jaxtyping.jaxtyped
    (folder / "checked_by_hook.py").write_text(MODULE)
    sys.path.insert(0, str(folder))
    hooks = list(sys.meta_path)
    checked_types.install("checked_by_hook")
    try:
        yield importlib.import_module("checked_by_hook")
    finally:
        sys.path.remove(str(folder))
        sys.meta_path[:], jaxtyping.jaxtyped = hooks, before
        sys.modules.pop("checked_by_hook")


@pytest.mark.parametrize("call", WRONG.values(), ids=list(WRONG))
def test_what_is_wrong_fails(module, call):
    with pytest.raises(jaxtyping.TypeCheckError):
        call(module)


def test_what_is_right_passes(module):
    """An int is a float (PEP 484); what cannot be resolved is not checked."""
    assert module.plain(2, seconds=3) == "xx"
    assert module.shaped(jnp.ones((2, 3)), jnp.ones(3)).shape == (2,)
    module.unknown(object(), 1)
    assert module.outer()(3) == 3
    assert module.Data(1).x == module.Pair(1).x == module.Methods.of(1).kept


def test_annotations_stay_as_they_are_written(module):
    assert module.plain.__annotations__["count"] == "int"
