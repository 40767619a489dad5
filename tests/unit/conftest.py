"""Unit tests: each file begins without compiled programs of another."""

import jax
import pytest


@pytest.fixture(scope="module", autouse=True)
def programs_of_this_file():
    """Drops what JAX has traced and compiled: all files together fill gigabytes."""
    yield
    jax.clear_caches()
