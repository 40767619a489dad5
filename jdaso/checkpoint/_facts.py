"""Settings of optimizers that a checkpoint must share with the program that restores it."""

from __future__ import annotations

import logging
import re

from .._payload.wire import WIRES
from .._session import Session
from ._files import CheckpointError, Manifest

log = logging.getLogger("jdaso")


def facts_of(session: Session) -> tuple[tuple[str, str], ...]:
    """Returns the settings of a session's optimizers, by name."""
    facts = sorted(session.optimizers.facts.items())
    return tuple((f"{name} of optimizer {n}", value) for n, x in facts for name, value in x)


def take_measured(manifest: Manifest, session: Session) -> None:
    """Makes optimizers with ``wire="auto"`` continue with the wire of a checkpoint."""
    for name in _measured(session):
        wire = WIRES.get(dict(manifest.facts).get(name, ""))
        if wire is None or wire is session.fastest_wire():
            continue
        session.go_on_with(wire)
        if wire is session.fastest_wire():
            log.info(
                'wire="auto" is "%s", as in the run that saved the checkpoint of step %d.',
                wire.name,
                manifest.step,
            )


def check_facts(manifest: Manifest, session: Session, *, goes_on: bool = True) -> None:
    """Compares a checkpoint's settings with those of the session.

    Args:
        manifest: of the checkpoint.
        session: the nodes.
        goes_on: whether the run continues from the checkpoint; otherwise a measured wire may
            differ.

    Raises:
        CheckpointError: a setting differs. With one node, here or there, the settings may differ.
    """
    here, measured = dict(facts_of(session)), _measured(session)
    alone = manifest.num_nodes == 1 and not session.simulated
    if session.num_nodes == 1 or alone:
        return
    for name, value in manifest.facts:
        if _without_fragments(here.get(name)) == _without_fragments(value):
            continue
        if name in measured and not goes_on:
            continue
        late = " before the first update" if name in measured and session.sends else ""
        raise CheckpointError(
            f"The checkpoint of step {manifest.step} was saved with another value of "
            f"{name}: {value}, and here it is {here.get(name, 'absent')}. Restore{late} with "
            "the settings that it was saved with."
        )


def has_other_phases(manifest: Manifest, session: Session) -> bool:
    """Returns whether an optimizer has another B, S or l here than in the checkpoint.

    Lengths of phases may differ; so may the number of fragments.
    """
    here = dict(facts_of(session))
    lengths = re.compile(r"\b(total|warmup|cooldown)_steps=\d+")
    rest = lambda value: lengths.sub("", _without_fragments(value) or "")  # noqa: E731
    return any(
        name.startswith("the setting phases ") and rest(here.get(name)) != rest(value)
        for name, value in manifest.facts
    )


def _without_fragments(value: str | None) -> str | None:
    """A setting without the number of fragments.

    The shapes of the state show how many there are, also where `Phases` has ``"auto"``.
    """
    return None if value is None else re.sub(r"\bfragments=('auto'|\d+)", "", value)


def _measured(session: Session) -> list[str]:
    """The names of the settings that are measured wires."""
    return [f"the setting wire of optimizer {n}" for n in sorted(session.optimizers.measured)]
