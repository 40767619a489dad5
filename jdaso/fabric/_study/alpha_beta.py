"""Latency and bandwidth of each fabric, library and collective, fitted to half of a study's cells.

A collective takes ``alpha rounds(P) + beta bytes(P, S)``, with rounds and bytes of its algorithm.
The other half of the cells is not seen by the fit and measures its error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64
from scipy import optimize

from .collectives import ALGORITHMS, Algorithm
from .estimate import WIRE_BYTES
from .measured import Key, MeasuredLaunch, RowsError, good_cells, key_of

FEWEST_CELLS = 4
_TOLERATED = 0.05
"""Relative error above which a cell's weight falls: an outlier does not bend the line."""
_SAME = 1e-3
"""Algorithms whose errors differ by less are taken as equal."""

Column = Float64[np.ndarray, " cells"]


class Cells(NamedTuple):
    """Cells of one fabric, library and collective.

    Attributes:
        nodes: P of each.
        sizes: S of each, in bytes on the wire.
        seconds: the median of its replicates' medians.
    """

    nodes: Column
    sizes: Column
    seconds: Column

    def halves(self) -> tuple[Cells, Cells]:
        """Returns every other cell of each number of nodes, by turns the first or the second."""
        _, begins, row = np.unique(self.nodes, return_index=True, return_inverse=True)
        place = np.arange(len(row)) - begins[row]
        first = (row + place) % 2 == 0
        return Cells(*(x[first] for x in self)), Cells(*(x[~first] for x in self))

    def terms(self, algorithm: Algorithm) -> Float64[np.ndarray, "2 cells"]:
        """Returns rounds and bytes of each cell."""
        rounds = [algorithm.rounds(int(p)) for p in self.nodes]
        moved = [algorithm.share(int(p)) * s for p, s in zip(self.nodes, self.sizes, strict=True)]
        return np.array([rounds, moved], float)


@dataclasses.dataclass(frozen=True)
class Fit:
    """Latency and bandwidth of one fabric, library and collective.

    Attributes:
        factors: all but nodes and bytes.
        algorithm: the one that fits best; of several that fit equally well, the first.
        alpha_seconds: of one round, apart from its bytes.
        beta_seconds: of one byte through a node's link.
        fitted: cells that were fitted.
        held_out: cells that were not.
        median_error: of the held-out cells: median of ``|fit / measured - 1|``.
        worst_error: the largest.
        nodes: the numbers of nodes that were measured.
    """

    factors: Key
    algorithm: Algorithm
    alpha_seconds: float
    beta_seconds: float
    fitted: int
    held_out: int
    median_error: float
    worst_error: float
    nodes: tuple[int, ...]

    @property
    def bytes_per_second(self) -> float:
        """``1 / beta``, of a node's link, each way."""
        return 1 / self.beta_seconds if self.beta_seconds else float("inf")

    def seconds(self, nodes: int, size: int) -> float:
        """Predicts an operation: ``alpha rounds(P) + beta share(P) S``.

        Args:
            nodes: P, also more than were measured; 1 takes no time.
            size: S in bytes, as the study declares them.
        """
        if nodes < 2:
            return 0.0
        rounds, share = self.algorithm.rounds(nodes), self.algorithm.share(nodes)
        moved = share * size * on_wire(dict(self.factors))
        return self.alpha_seconds * rounds + self.beta_seconds * moved

    @property
    def words(self) -> str:
        """The fit as a sentence, with the error and the cells that it comes from."""
        said = (
            f"{1e6 * self.alpha_seconds:.3g} us a round, "
            f"{8 * self.bytes_per_second / 1e9:.4g} Gbit/s ({self.algorithm.name}; "
            f"{self.fitted} cells; {self.held_out} others within {self.median_error:.1%}, "
            f"the worst {self.worst_error:.1%}"
        )
        one = f"; measured with {self.nodes[0]} nodes only, so the algorithm is assumed)"
        return said + (one if len(self.nodes) == 1 else ")")


class Fits(NamedTuple):
    """Fits of a study, and the reason for each group of cells that has none."""

    fits: list[Fit]
    left_out: list[str]


def on_wire(factors: Mapping[str, Any]) -> float:
    """Bytes on the wire for each declared one: exchanges declare float32, whatever their wire.

    A wire of a program of one's own counts as declared.
    """
    if factors["workload"] != "exchange":
        return 1.0
    wire = str(factors.get("wire", "float32"))
    return WIRE_BYTES.get(wire, WIRE_BYTES["float32"]) / WIRE_BYTES["float32"]


def fits_of(launches: Iterable[MeasuredLaunch]) -> Fits:
    """Fits each fabric, library and collective of a study that has enough cells."""
    groups: dict[Key, list[tuple[int, float, float]]] = {}
    for some in good_cells(launches).values():
        factors = some[0].factors
        if factors.get("workload") in ALGORITHMS and "bytes" in factors and factors["nodes"] > 1:
            median = float(np.median([launch.median for launch in some]))
            place = (factors["nodes"], factors["bytes"] * on_wire(factors), median)
            groups.setdefault(key_of(factors, without=["nodes", "bytes"]), []).append(place)
    found = Fits([], [])
    for key, cells in groups.items():
        try:
            found.fits.append(fit(key, Cells(*np.array(sorted(cells), float).T)))
        except RowsError as error:
            found.left_out.append(str(error))
    return found


def rates_of(launches: Sequence[MeasuredLaunch]) -> dict[str, float]:
    """Returns bit/s of each fabric: as declared for an emulated one, else from its fastest fit.

    A real link has at least the rate of any operation; a fabric without a fit is left out.
    """
    found, fitted = {}, {}
    for launch in launches:
        if launch.bits_per_second:
            found[launch.factors["fabric"]] = launch.bits_per_second
    if {launch.factors["fabric"] for launch in launches} - found.keys():
        for one in fits_of(launches).fits:
            fabric, rate = dict(one.factors)["fabric"], 8 * one.bytes_per_second
            fitted[fabric] = max(rate, fitted.get(fabric, 0))
    return {name: rate for name, rate in fitted.items() if np.isfinite(rate)} | found


def fit(factors: Key, cells: Cells) -> Fit:
    """Fits one group: the first of its halves; the other is held out.

    Args:
        factors: of the group; "workload" gives the algorithms.
        cells: in the order of nodes and bytes.

    Raises:
        RowsError: there are too few cells, or all have one size.
    """
    seen, unseen = cells.halves()
    if len(cells.nodes) < FEWEST_CELLS or len(set(seen.sizes)) < 2:
        name = ", ".join(str(value) for _, value in factors)
        raise RowsError(
            f"{name}: a fit needs at least {FEWEST_CELLS} cells, half of them of 2 sizes or more; "
            f"there are {len(cells.nodes)}, of {len(set(cells.sizes))}. Declare more levels of "
            "bytes."
        )
    tried = [(a, *_solve(seen, a)) for a in ALGORITHMS[dict(factors)["workload"]]]
    losses = [np.median(_errors(seen, a, alpha, beta)) for a, alpha, beta in tried]
    least = min(losses)
    best = next(k for k, loss in enumerate(losses) if loss <= least + _SAME)
    errors = _errors(unseen, *tried[best])
    return Fit(
        factors,
        *tried[best],
        fitted=len(seen.nodes),
        held_out=len(unseen.nodes),
        median_error=float(np.median(errors)),
        worst_error=float(np.max(errors)),
        nodes=tuple(sorted({int(p) for p in cells.nodes})),
    )


def _solve(cells: Cells, algorithm: Algorithm) -> tuple[float, float]:
    """Minimizes a robust loss of ``log(fit / measured)`` over alpha and beta, both at least 0.

    The logarithm counts a cell that is ten times too fast like one that is ten times too slow.
    """
    terms = (cells.terms(algorithm) / cells.seconds).T
    scale = np.linalg.norm(terms, axis=0)
    start, _ = optimize.nnls(terms / scale, np.ones(len(terms)))
    found = optimize.least_squares(
        lambda x: np.log(np.maximum(terms / scale @ x, 1e-12)),
        start,
        bounds=(0, np.inf),
        loss="soft_l1",
        f_scale=_TOLERATED,
        xtol=1e-12,
        ftol=1e-12,
    )
    alpha, beta = map(float, found.x / scale)
    return alpha, beta


def _errors(cells: Cells, algorithm: Algorithm, alpha: float, beta: float) -> Column:
    predicted = np.array([alpha, beta]) @ cells.terms(algorithm)
    return np.abs(predicted / cells.seconds - 1)


def chosen(fits: Sequence[Fit], where: dict[str, str], prefer: Sequence[str] = ()) -> Fit:
    """Returns the one fit whose factors are as given.

    Args:
        fits: to choose from.
        where: factor -> level, as text.
        prefer: workloads to choose from if several remain, the best first.

    Raises:
        RowsError: none or several remain.
    """
    left = [
        one for one in fits
        if all(str(dict(one.factors).get(name)) == level for name, level in where.items())
    ]  # fmt: skip
    for workload in prefer:
        left = [one for one in left if dict(one.factors)["workload"] == workload] or left
        if len({dict(one.factors)["workload"] for one in left}) == 1:
            break
    if len(left) == 1:
        return left[0]
    names = [", ".join(f"{name}={level}" for name, level in one.factors) for one in left or fits]
    raise RowsError(
        f"{len(left)} fits of the study match. Choose one with --where FACTOR=LEVEL: "
        f"{'; '.join(names) or 'there are none, declare more levels of bytes'}."
    )
