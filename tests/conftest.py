"""What holds for every test: the CPU, and with JDASO_TYPECHECK=1 checked shapes."""

import gc
import os
import signal

import compiling
import hypothesis
import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Launches say how themselves; test_users_compiler.py starts some tests again as users compile.
os.environ.setdefault("XLA_FLAGS", compiling.QUICKLY)

if os.environ.get("JDASO_TYPECHECK") == "1":
    from jaxtyping import install_import_hook

    # PEP 484: an int will do where a float is asked for (timeout_seconds=30).
    checker = "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
    install_import_hook("jdaso", checker)

import jax

import jdaso  # noqa: F401  sets up the CPU's threads, so before the first use of a device

# Tracing makes millions of objects that live on; looking through them again and again takes time.
gc.set_threshold(50_000, 20, 100)

# A shell's background job ignores it, and so would what the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run, and so on every rank.
hypothesis.settings.register_profile("jdaso", derandomize=True, deadline=None)
hypothesis.settings.load_profile("jdaso")


IN_TURN = {
    "test_devices.py": "launches",
    "test_failures.py": "launches",
    "test_mpi_suites.py": "suites",
    "test_cluster.py": "launches",
    "test_doctor.py": "launches",
}


def pytest_itemcollected(item):
    if item.path.parent.name == "launch":
        item.add_marker(pytest.mark.mpi)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Launches that the clock judges go to one worker of pytest-xdist, one after another.

    So at most two run at once; whoever is done with them goes on with what is not.

    Its own groups (`--dist loadgroup`) do nothing with pytest 9.2 (pytest-xdist issue 1386).
    """
    from xdist.scheduler import LoadScopeScheduling

    class LaunchesInTurn(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.split("::")[0].rsplit("/", 1)[-1]
            return IN_TURN.get(file, nodeid)

    return LaunchesInTurn(config, log)


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
