"""One node's part of a checkpoint on disk: its files, and the manifest that lists them.

    step_00000400-000012/   the twelfth save in this folder
        common/         arrays that are the same on all nodes, written by node 0
        node_0/  ...    arrays that differ, in a folder for each node
        node_0.json ... manifests: the contents, and a checksum of every file

A node writes its manifest last, and atomically. A checkpoint is complete when the manifests of all
nodes are there, so that a kill at any moment leaves the previous checkpoint intact. Nothing here
is ever executed: arrays are raw numbers, all else is JSON.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ._digests import digest, digest_of_file, sync_folder

FORMAT = 3
COMMON = "common"

SMALL, _SMALL_BYTES = "jdaso.small", 256 * 2**10
"""The array that holds all small arrays, and the size below which an array is small."""


class CheckpointError(ValueError):
    """A checkpoint cannot be used; the text names the file or the leaf."""

    __module__ = "jdaso.checkpoint"


class DamagedError(CheckpointError):
    """A file is not what was written; an older checkpoint may be intact."""


@dataclasses.dataclass(frozen=True)
class SavedLeaf:
    """One array of a checkpoint.

    Attributes:
        path: its place in the tree, as JAX writes it.
        file: the name of its folder within orbax's.
        dtype: dtype of its elements; for random keys ``"key<fry>"`` and the like.
        shape: shape of the array in the file.
        common: whether it is the same on all nodes.
        field: the field of a jdaso state that it belongs to, or "".
        crc: CRC-32, for a small array, which shares its file with others.
        whole: the shape of the leaf, if the array holds only pieces of it, along its first axis.
        begins: the place in the leaf where each piece begins.
        shapes: the shape of each piece, if they differ: then the array is flat.
    """

    path: str
    file: str
    dtype: str
    shape: tuple[int, ...]
    common: bool
    field: str = ""
    crc: int = dataclasses.field(default=0, compare=False)
    whole: tuple[int, ...] | None = None
    begins: tuple[tuple[int, ...], ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> SavedLeaf:
        """Returns a leaf from its fields as JSON holds them."""
        whole = fields.get("whole")
        tuples = {
            "shape": tuple(fields["shape"]),
            "whole": None if whole is None else tuple(whole),
            "begins": tuple(map(tuple, fields.get("begins", ()))),
            "shapes": tuple(map(tuple, fields.get("shapes", ()))),
        }
        return cls(**{**fields, **tuples})

    @property
    def full_shape(self) -> tuple[int, ...]:
        """The shape of the leaf itself."""
        return self.shape if self.whole is None else self.whole

    def of_devices(self, count: int) -> SavedLeaf | None:
        """Returns the same leaf with a first axis of devices; None if `count` is 0."""
        return dataclasses.replace(self, shape=(count, *self.shape)) if count else None

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.full_shape))}]"


class SavedFlight(NamedTuple):
    """A late exchange that a state continues from.

    Attributes:
        optimizer: the optimizer's number.
        model: the number of the model.
        fragment: the fragment of its parameters.
        ticket: identifies the exchange.
        in_flight: whether the exchange is in flight.
        meaning: the meaning of its numbers; see `meaning_of`.
    """

    optimizer: int
    model: int
    fragment: int
    ticket: int
    in_flight: bool
    meaning: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The contents of one node's part.

    Attributes:
        run: the run of the program that wrote it.
        number: number of the save among all in the folder; the same on all nodes.
        step: completed updates.
        node: the node that wrote it; where nodes have several ranks, the rank.
        nodes: number of nodes, or ranks, in the save.
        begun: number of them when the run began; larger if some have failed.
        score: the program's score, for `Checkpoints(keep_best=...)`.
        facts: settings of the optimizers, by name.
        leaves: the arrays.
        parted: number of local devices whose replicas differ; 0 if they do not.
        flights: the late exchanges that a state continues from.
        files: size and SHA-256 of each file, by its path in the checkpoint.
        versions: versions of the libraries that wrote it.
        ranks_per_node: the number of ranks that a node had.
    """

    run: str
    number: int
    step: int
    node: int
    nodes: int
    begun: int
    score: float | None
    facts: tuple[tuple[str, str], ...]
    leaves: tuple[SavedLeaf, ...]
    parted: int
    flights: tuple[SavedFlight, ...]
    files: Mapping[str, tuple[int, str]]
    versions: Mapping[str, str]
    ranks_per_node: int = 1

    @property
    def num_nodes(self) -> int:
        """The number of nodes in the save."""
        return self.nodes // self.ranks_per_node

    @cached_property
    def _verified(self) -> set[Path]:
        """Files that were already found intact."""
        return set()

    @cached_property
    def parts(self) -> dict[int, Manifest]:
        """Manifests of other ranks of this save that were read, by their ranks."""
        return {}

    @cached_property
    def small(self) -> dict[str, np.ndarray]:
        """The joined small arrays of this node that were read, by the name of their folder."""
        return {}

    def write(self, folder: Path) -> None:
        """Writes the manifest beside the arrays, which are on disk by then."""
        body = {"format": FORMAT, **dataclasses.asdict(self)}
        text = json.dumps({"body": body, "sha256": digest(_dumps(body))}, indent=1)
        part = folder / f"node_{self.node}.json.part"
        with open(part, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, manifest_path(folder, self.node))
        sync_folder(folder)

    @classmethod
    def read(cls, folder: Path, node: int) -> Manifest:
        """Reads the manifest of one node.

        Raises:
            DamagedError: the manifest is missing or damaged.
        """
        path = manifest_path(folder, node)
        try:
            text = json.loads(path.read_bytes())
            body = text["body"]
            if text["sha256"] != digest(_dumps(body)):
                raise ValueError("its checksum differs")
            if body.pop("format") != FORMAT:
                raise ValueError(f"its format is not {FORMAT}")
            body["leaves"] = tuple(map(SavedLeaf.of, body["leaves"]))
            body["facts"] = tuple((name, value) for name, value in body["facts"])
            body["flights"] = tuple(SavedFlight(*flight) for flight in body["flights"])
            body["files"] = {name: (size, sha) for name, (size, sha) in body["files"].items()}
            return cls(**body)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DamagedError(f"{path} is missing or damaged ({error}).") from error

    def verify(
        self,
        folder: Path,
        names: Iterable[str] | None = None,
        leaves: Sequence[SavedLeaf] | None = None,
    ) -> None:
        """Compares every file with its checksum, once for each manifest that was read.

        Args:
            folder: of the checkpoint.
            names: if given, only files in folders of these names are checked.
            leaves: if given, only files needed to read these leaves are checked.

        Raises:
            DamagedError: a file is missing or differs in any byte; names the leaf.
        """
        spared: dict[str, set[str]] = {}
        for leaf in () if leaves is None else set(self.leaves) - set(leaves):
            if not is_small(leaf):
                spared.setdefault(_part(leaf, self.node), set()).add(leaf.file)
        for name, (size, sha) in self.files.items():
            part, array, *_ = *name.split("/"), ""
            if names is not None and part not in names:
                continue
            if array in spared.get(part, ()):
                continue
            path = folder / name
            if path in self._verified:
                continue
            try:
                if path.stat().st_size == size and digest_of_file(path) == sha:
                    self._verified.add(path)
                    continue
                why = "its checksum differs"
            except OSError as error:
                why = str(error)
            raise DamagedError(f"{path} is damaged: {self._leaf_at(folder, name)} ({why}).")

    def _leaf_at(self, folder: Path, name: str) -> str:
        """Describes the leaf that a damaged file holds."""
        part, array, *_ = *name.split("/"), ""
        leaves = [leaf for leaf in self.leaves if leaf.common == (part == COMMON)]
        if found := [leaf.path for leaf in leaves if leaf.file == array and not is_small(leaf)]:
            return f"leaf {found[0]}"
        if array != SMALL:
            return "the list of its arrays"
        data, begin = b"", 0
        with contextlib.suppress(OSError):
            data = (folder / name).read_bytes()
        for leaf in filter(is_small, leaves):
            end = begin + nbytes(leaf)
            if zlib.crc32(data[begin:end]) != leaf.crc:
                return f"leaf {leaf.path}"
            begin = end
        return "the shape of its small leaves"


def manifest_path(folder: Path, node: int) -> Path:
    """Returns the path of a node's manifest."""
    return folder / f"node_{node}.json"


def node_folder(node: int) -> str:
    """Returns the name of the folder of one node's own arrays."""
    return f"node_{node}"


def plain_dtype(dtype: str) -> str:
    """Returns NumPy's name for the numbers of a dtype; random keys are stored as words."""
    return "uint32" if dtype.startswith("key<") else dtype


def _part(leaf: SavedLeaf, node: int) -> str:
    """Returns the folder that holds an array of this node's manifest."""
    return COMMON if leaf.common else node_folder(node)


def nbytes(leaf: SavedLeaf) -> int:
    """Returns the size of an array."""
    return math.prod(leaf.shape) * np.dtype(plain_dtype(leaf.dtype)).itemsize


def is_small(leaf: SavedLeaf) -> bool:
    """Returns whether an array shares its file with other small ones."""
    return nbytes(leaf) < _SMALL_BYTES


def _dumps(body: Any) -> bytes:
    return json.dumps(body, sort_keys=True).encode()
