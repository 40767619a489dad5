"""Settings of every test: the CPU, and with JDASO_TYPECHECK checked types and shapes."""

import gc
import os
import signal
import tempfile

import compiling
import hypothesis
import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Launches say how themselves; test_users_compiler.py starts some tests again as users compile.
os.environ.setdefault("XLA_FLAGS", compiling.QUICKLY)
# Programs without Python's lines in them are lowered and compiled faster.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

if (checked := os.environ.get("JDASO_TYPECHECK", "0")) != "0":
    import checked_types

    # "1": all of jdaso; "shapes": where shapes are annotated, which starts much faster.
    shapes = ["jdaso._rules", "jdaso._optimizers", "jdaso.report"]
    checked_types.install(shapes if checked == "shapes" else "jdaso")

import compiled_once
import jax

import jdaso

assert jdaso.Session  # loading it sets up the CPU's threads: before the first use of a device

# Tracing makes millions of objects that live on; looking through them again and again takes time.
gc.set_threshold(50_000, 20, 100)

# A shell's background job ignores it, and so would what the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run, and so on every rank.
hypothesis.settings.register_profile("jdaso", derandomize=True, deadline=None)
hypothesis.settings.load_profile("jdaso")


pytest_plugins = ["turns"]

NIGHTLY = "a row of a table whose mechanism has a witness elsewhere: run with --nightly"
NIGHT_SECONDS = 1800
"""Of a test of the night that has no mark of its own: each of its launches ends sooner, and says
what its ranks have printed."""


def pytest_addoption(parser):
    parser.addoption("--nightly", action="store_true", help="whole tables, for hours")


def pytest_configure(config):
    """Gives the ranks that this run starts a folder for what they compile; it ends with the run."""
    if compiled_once.FOLDER not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="compiled-", ignore_cleanup_errors=True)
        os.environ[compiled_once.FOLDER] = folder.name
        config.add_cleanup(lambda: os.environ.pop(compiled_once.FOLDER))
        config.add_cleanup(folder.cleanup)


def pytest_itemcollected(item):
    if "launches" in item.path.parts:
        item.add_marker(pytest.mark.mpi)
    if "nightly" in item.path.parts:
        item.add_marker(pytest.mark.nightly)


def pytest_collection_modifyitems(config, items):
    for item in items:
        if item.get_closest_marker("nightly"):
            if not config.option.nightly:
                item.add_marker(pytest.mark.skip(reason=NIGHTLY))
            elif not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(NIGHT_SECONDS))


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
