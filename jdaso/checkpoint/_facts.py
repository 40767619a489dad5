"""Settings of optimizers that a checkpoint must share with the program that restores it."""

from __future__ import annotations

from .._session import Session
from ._files import CheckpointError, Manifest


def facts_of(session: Session) -> tuple[tuple[str, str], ...]:
    """Returns the settings of a session's optimizers, by name."""
    facts = sorted(session.optimizers.facts.items())
    return tuple((f"{name} of optimizer {n}", value) for n, x in facts for name, value in x)


def check_facts(manifest: Manifest, session: Session) -> None:
    """Compares a checkpoint's settings with those of the session.

    Raises:
        CheckpointError: a setting differs. With one node the settings do not matter.
    """
    here = dict(facts_of(session))
    alone = manifest.num_nodes == 1 and not session.simulated
    if session.num_nodes == 1 or alone:
        return
    for name, value in manifest.facts:
        if here.get(name) != value:
            chosen = f' If wire="auto" chose it, pass wire="{value}".' if "wire" in name else ""
            raise CheckpointError(
                f"The checkpoint of step {manifest.step} was saved with another value of "
                f"{name}: {value}, and here it is {here.get(name, 'absent')}. Restore with "
                f"the settings that it was saved with.{chosen}"
            )
