"""The interface of a state that is cut into parts, and that of a state in one piece."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax

from .._jax.types import PyTree
from .._session import Session
from ._facts import check_facts
from ._files import Manifest, SavedLeaf
from ._folder import Folder
from ._joined import leaves_of, read_pieces
from ._resize import fit_leaves, read_resized, spread
from ._restore import restore
from ._state import SavedValue, from_host, is_flight, values_of
from ._together import of_first, shares_leaves, together

_WHAT = "read checkpoints"


class Save(NamedTuple):
    """A complete save of all parts."""

    step: int
    name: str  # distinguishes the save from others of the step; the parts choose it
    identity: str  # unique to the save, even if the folder was recreated


@runtime_checkable
class Parts(Protocol):
    """The part of a state that a node saves, its place and its savers, and the way back to a whole.

    All nodes call `prepare`, `restore` and `read` together. `Checkpoints` and `Reader` raise on all
    nodes what the last two raise on one.

    Attributes:
        session: all nodes.
        savers: the nodes that save the same part as this one, together.
        several: whether there may be other parts, which may be saved later than this one.
    """

    session: Session
    savers: Session
    several: bool

    def prepare(self, root: Path) -> Path:
        """Makes the folder ready for all parts; returns that of this node's part."""
        ...

    def saves(self, root: Path) -> list[Save]:
        """Returns the saves that are complete, as this node sees them, the preferred one last."""
        ...

    def last_number(self, root: Path) -> int:
        """Returns the number of the last save in the folders of all parts, complete or not."""
        ...

    def whole_numbers(self, root: Path) -> Collection[int] | None:
        """Returns the numbers of the saves that all parts have; None if there is only one part."""
        ...

    def unreadable(self, root: Path) -> list[str]:
        """Returns the reason for each save whose manifest exists but cannot be read."""
        ...

    def restore(self, root: Path, save: Save, like: PyTree) -> PyTree:
        """Restores a save for a run that continues from it, with its exchanges in flight."""
        ...

    def read(self, root: Path, save: Save, like: PyTree) -> PyTree:
        """Reads a save for a program other than the run."""
        ...


class WholeState:
    """A state in one piece: each node saves its own, and the first one what all have in common."""

    several = False

    def __init__(self, session: Session):
        self.session = self.savers = session

    def prepare(self, root: Path) -> Path:
        """See `Parts`."""
        return root

    def saves(self, root: Path) -> list[Save]:
        """See `Parts`."""
        complete = Folder(root).complete()
        return [Save(x.step, path.name, f"{x.run}-{x.number}") for path, x in complete]

    def last_number(self, root: Path) -> int:
        """See `Parts`."""
        return Folder(root).last_number()

    def whole_numbers(self, root: Path) -> None:
        """See `Parts`."""

    def unreadable(self, root: Path) -> list[str]:
        """See `Parts`."""
        return [str(error) for _, error in Folder(root).unreadable()]

    def restore(self, root: Path, save: Save, like: PyTree) -> PyTree:
        """See `Parts`."""
        return restore(self.session, root / save.name, like)

    def read(self, root: Path, save: Save, like: PyTree) -> PyTree:
        """Reads on node 0, for all nodes; `like` may lack parts of the saved state."""
        session, arrays = self.session, {}
        here = values_of(like, shares=shares_leaves(session))
        session.agree(_WHAT, [(f"leaf {leaf.path}", str(leaf)) for leaf, _ in here])

        def saved_by() -> int:
            return Manifest.read(root / save.name, 0).ranks_per_node

        if session.joined or of_first(session, _WHAT, saved_by) > 1:
            return self._read_joined(root / save.name, like, here)

        def read() -> Any:
            first = Manifest.read(root / save.name, 0)
            if any(leaf.field for leaf, _ in here):
                check_facts(first, session, goes_on=False)
            saved = [leaf for leaf in first.leaves if not is_flight(leaf)]
            fitting = fit_leaves(saved, here, first.parted, partly=True)
            arrays.update(read_resized(root / save.name, fitting, first.nodes))
            return first.nodes, {file: dataclasses.asdict(leaf) for file, leaf in fitting.items()}

        nodes, about = of_first(session, _WHAT, read)
        fitting = {file: SavedLeaf.of(leaf) for file, leaf in about.items()}
        arrays = spread(here, fitting, nodes, arrays, session, node=0)  # the same for all
        leaves = [from_host(value, arrays[value.leaf.file], session.mesh) for value in here]
        return jax.tree.unflatten(jax.tree.structure(like), leaves)

    def _read_joined(self, folder: Path, like: PyTree, here: Sequence[SavedValue]) -> PyTree:
        """Reads on each rank what it needs."""
        session = self.session
        with together(session, _WHAT):
            first = Manifest.read(folder, 0)
            if any(leaf.field for leaf, _ in here):
                check_facts(first, session, goes_on=False)
            found = read_pieces(folder, first, here, session, goes_on=False, partly=True)
        leaves = leaves_of(session, here, found)
        return jax.tree.unflatten(jax.tree.structure(like), leaves)


@runtime_checkable
class Cut(Protocol):
    """An object whose states are saved in parts, such as `jdaso.pipeline.Pipeline`."""

    @property
    def parts(self) -> Parts:
        """The parts of its states."""
        ...


def parts_of(whose: Session | Cut) -> Parts:
    """Returns how the states of a session or a pipeline are cut."""
    return WholeState(whose) if isinstance(whose, Session) else whose.parts
