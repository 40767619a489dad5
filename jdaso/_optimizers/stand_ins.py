"""Trials of an inner optimizer, on small arrays in place of the parameters."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from .._jax.types import PyTree, ShapeDtype
from .._payload.layout import describe


@runtime_checkable
class HasFailure(Protocol):
    """A result that names the error of a trial; "" if there was none."""

    @property
    def failure(self) -> str: ...  # noqa: D102


Found = TypeVar("Found", bound=HasFailure)


_tries: ContextVar[bool] = ContextVar("tries", default=False)


def in_trial() -> bool:
    """Returns whether an optimizer is only tried here; it must not send anything then."""
    return _tries.get()


@contextlib.contextmanager
def trial() -> Iterator[None]:
    """A trial of an inner optimizer, which each rank makes by itself."""
    before = _tries.set(True)
    try:
        yield
    finally:
        _tries.reset(before)


class Trial(abc.ABC, Generic[Found]):
    """Finds facts about an inner optimizer, once for each tree of parameters.

    In `optax.inject_hyperparams` each trace makes the inner optimizer again, and its numbers are
    traced: no trial can run. Then the facts are those of the one that `init` made.

    Args:
        init: the inner optimizer's `init`.
        update: the inner optimizer's update; see `inner.update_with`.
        earlier: the facts about all optimizers of a session; None for no others.
    """

    def __init__(
        self,
        init: Callable[..., Any],
        update: Callable[..., Any],
        earlier: dict[Any, Any] | None = None,
    ):
        self._init, self._update = init, update
        self._known: dict[Any, Found] = {}
        self._earlier = {} if earlier is None else earlier

    def find(self, params: PyTree) -> Found:
        """The facts for these parameters, or their shapes."""
        key = jax.tree.structure(params), describe(params)
        if key not in self._known:
            # In a thread of its own, where no program is being traced, and for no mesh.
            with ThreadPoolExecutor(1) as thread:
                shapes = jax.tree.map(shape_of, params)
                try:
                    state = thread.submit(jax.eval_shape, self._init, shapes).result()
                except Exception as error:  # such as an init that uses NumPy
                    self._known[key] = self._nothing(first_line(error))
                    return self._known[key]
                found = thread.submit(self._found_in_trial, shapes).result()
            about = type(self), *key, str(jax.tree.structure(state))
            if found.failure:
                found = self._earlier.get(about, found)
            self._known[key] = self._earlier[about] = found
        return self._known[key]

    def _found_in_trial(self, params: PyTree) -> Found:
        with trial():
            return self._found(params)

    @abc.abstractmethod
    def _nothing(self, failure: str) -> Found:
        """The facts if the inner optimizer's `init` cannot be traced."""

    @abc.abstractmethod
    def _found(self, params: PyTree) -> Found:
        """The facts for parameters of these shapes."""


def first_line(error: Exception) -> str:
    """The type of an error, and the first line of its text."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def zeros_of(params: PyTree, side: int | None) -> PyTree:
    """Zeros in place of the parameters, with axes no longer than `side`."""

    def zeros(x: ShapeDtype) -> jax.Array:
        return jnp.zeros(tuple(min(n, side or n) for n in x.shape), x.dtype)

    return jax.tree.map(zeros, params)


def shape_of(x: Any) -> ShapeDtype:
    """Shape and dtype of a leaf; an integer in place of a key: optimizers leave both alone."""
    dtype = jnp.result_type(x)
    is_key = jnp.issubdtype(dtype, jax.dtypes.prng_key)
    return ShapeDtype(np.shape(x), jnp.uint32 if is_key else dtype)
