"""Settings of a session that do not go together."""

import pytest

import jdaso
from jdaso._session import settings


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({}, None),
        ({"ranks_per_node": 2}, None),
        ({"on_death": "shrink"}, None),
        ({"on_death": "shrink", "ranks_per_node": 2}, "ranks_per_node=2 cannot. Leave it out"),
        ({"on_death": "shrink", "engine": "mpi4jax"}, 'needs engine="mpi4py"'),
        ({"engine": "auto"}, "engine must be one of"),
        ({"engine": "simulated", "virtual": jdaso.Simulated(nodes=2), "ranks_per_node": 2}, "real"),
    ],
)
def test_what_goes_together(about, said, monkeypatch):
    monkeypatch.setattr(settings, "launched_ranks", lambda: 4)
    monkeypatch.setattr(settings, "survives_deaths", lambda: True)
    usual = {"engine": "mpi4py", "virtual": None, "timeout_seconds": None, "on_death": "end"}
    error = settings.check_settings(**{**usual, "ranks_per_node": 1, **about})
    assert error is None if said is None else said in str(error)
