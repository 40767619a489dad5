"""What holds for every test: the CPU, and with JDASO_TYPECHECK=1 checked shapes."""

import os

import hypothesis
import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")

if os.environ.get("JDASO_TYPECHECK") == "1":
    from jaxtyping import install_import_hook

    install_import_hook("jdaso", "beartype.beartype")

import jax

import jdaso  # noqa: F401  sets up the CPU's threads, so before the first use of a device

# The same examples in every run, and so on every rank.
hypothesis.settings.register_profile("jdaso", derandomize=True, deadline=None)
hypothesis.settings.load_profile("jdaso")


@pytest.fixture(autouse=True)
def strict_dtypes(request):
    """`@pytest.mark.strict_dtypes`: no silent promotion of dtypes or ranks in jdaso's formulas.

    Not for tests that run optimizers: optax itself promotes (``decay ** count``).
    """
    if request.node.get_closest_marker("strict_dtypes"):
        with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
            yield
    else:
        yield
