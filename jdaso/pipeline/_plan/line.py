"""A program as a line of places to cut between, and the values that flow between places."""

from __future__ import annotations

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from jax.extend.core import Var

from .cost import Cost, sum_costs
from .equations import bytes_of
from .program import Program, RowRange, is_mark
from .search import LineValue

_PARAMS, _BATCH, _BOTH = 1, 2, 4

_HEAVY_SHARE = 0.01
"""A share of all work. A costlier equation is computed once and its result sent to its users."""


@dataclasses.dataclass(frozen=True)
class Line:
    """The equations that stages divide among themselves, in order, and the traffic between them.

    Equations of parameters alone (a cast, a scaled weight), of the batch alone (masks, dropout
    keys) or of neither have no place: each stage that needs one computes it, as it has the
    parameters and the batch at hand, and sending would cost more. A heavy equation is an exception:
    it has a place like any other.

    Attributes:
        program: the program that the line was made from.
        places: indices of the equations that have a place, in order.
        costs: cost of each place, including equations without a place that this one is the first to
            need.
        values: values that flow from place to place: results, and parameters that several places
            use.
        uses: maps each piece of a parameter to the places that use the piece, in ascending order.
        marks: places after an explicit `boundary`.
        spans: for each leaf of the state, the first place that uses or makes it and the place after
            the last; no cut may lie between. Both are 0 if no place uses the leaf.
        backward: variables that depend on parameters, so gradients flow back through them.
        heavy: indices of the equations that have a place because they are heavy.
    """

    program: Program
    places: tuple[int, ...]
    costs: tuple[Cost, ...]
    values: tuple[LineValue, ...]
    uses: dict[RowRange, tuple[int, ...]]
    marks: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    backward: frozenset[Var]
    heavy: frozenset[int]

    @functools.cached_property
    def inside_spans(self) -> frozenset[int]:
        """Places where a cut is not allowed: it would divide the uses of a leaf of the state."""
        return frozenset(place for begin, end in self.spans for place in range(begin + 1, end))

    def label(self, place: int) -> str:
        """Returns the name of a place, from the names that the model gives its parts."""
        eqn = self.program.eqns[self.places[place]]
        stack = str(eqn.source_info.name_stack)
        return f"{stack}/{eqn.primitive.name}" if stack else eqn.primitive.name


def line_of(
    program: Program,
    costs: Sequence[Cost] | None,
    num_microbatches: int,
    like: Line | None = None,
) -> Line:
    """Finds the places of a program and the traffic between them.

    Args:
        program: the loss of a micro-batch.
        costs: costs of its equations; None where the cuts are known, which makes them all zero.
        num_microbatches: micro-batches per step; a parameter travels once for all of them.
        like: the line of larger micro-batches, whose places are kept: its heavy equations stay
            heavy.
    """
    costs = [Cost()] * len(program.eqns) if costs is None else costs
    least = _HEAVY_SHARE * sum(cost.total for cost in costs)
    heavy = frozenset(at for at, cost in enumerate(costs) if cost.total > least)
    heavy = heavy if like is None else like.heavy
    depends = _dependence(program, heavy)
    made_by = {var: at for at, eqn in enumerate(program.eqns) for var in eqn.outvars}
    pieces = pieces_of(program)
    places = [at for at, eqn in enumerate(program.eqns) if depends[eqn.outvars[0]] & _BOTH]
    attended: list[Cost] = []
    done: set[int] = set()
    users: dict[Var, list[int]] = defaultdict(list)
    uses: dict[RowRange, list[int]] = defaultdict(list)
    for place, at in enumerate(places):
        eqn, here = program.eqns[at], [costs[at]]
        todo, seen = [v for v in eqn.invars if isinstance(v, Var)], set()
        while todo:
            var = todo.pop()
            if var in seen:
                continue
            seen.add(var)
            if var in pieces:
                uses[pieces[var]].append(place)
            elif var in made_by and depends[var] & _BOTH:
                users[var].append(place)
            elif var in made_by:
                at_var = made_by[var]
                todo += [v for v in program.eqns[at_var].invars if isinstance(v, Var)]
                if at_var not in done:
                    done.add(at_var)
                    here.append(costs[at_var])
        attended.append(sum_costs(here) if len(here) > 1 else here[0])
    number = {at: place for place, at in enumerate(places)}
    backward = frozenset(var for var, flags in depends.items() if flags & _PARAMS)
    values = [
        LineValue(
            number[made_by[var]], tuple(used), bytes_of(var) * (2.0 if var in backward else 1.0)
        )
        for var, used in users.items()
    ]
    sizes = {pieces[var]: bytes_of(var) for var in pieces}
    values += [
        LineValue(used[0], tuple(used[1:]), 2.0 * sizes[piece] / num_microbatches)
        for piece, used in uses.items()
        if len(used) > 1
    ]
    marks = [
        place + 1
        for place, at in enumerate(places[:-1])
        if is_mark(program.eqns[at]) and not is_mark(program.eqns[places[place + 1]])
    ]
    return Line(
        program,
        tuple(places),
        tuple(attended),
        tuple(values),
        {piece: tuple(used) for piece, used in uses.items()},
        tuple(marks),
        tuple(_spans(program, places)),
        backward,
        heavy,
    )


def pieces_of(program: Program) -> dict[Var, RowRange]:
    """Maps the variables that stand for parameters, or rows of them, to those rows."""
    return {var: RowRange(leaf) for leaf, var in enumerate(program.params)} | program.rows


def _spans(program: Program, places: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields the span of places in which each leaf of the state is in use."""
    used: dict[Var, list[int]] = defaultdict(list)
    for place, at in enumerate(places):
        eqn = program.eqns[at]
        for var in {v for v in (*eqn.invars, *eqn.outvars) if isinstance(v, Var)}:
            used[var].append(place)
    groups = {var: [k] for k, var in enumerate(program.state)}  # leaves that share a stage
    for k, var in enumerate(program.state):
        new = program.outs[1 + k]
        if isinstance(new, Var) and new in groups and groups[new] is not groups[var]:
            groups[var] += groups[new]  # one leaf's new value is another leaf's old one
            groups |= {program.state[j]: groups[var] for j in groups[new]}
    for var in program.state:
        found: list[int] = []
        for k in groups[var]:
            old, new = program.state[k], program.outs[1 + k]
            found += used[old] + (used[new][:1] if isinstance(new, Var) and new is not old else [])
        yield (min(found), max(found) + 1) if found else (0, 0)


def _dependence(program: Program, heavy: Collection[int]) -> dict[Var, int]:
    """Returns what each variable depends on; `_BOTH` if its equation has a place on the line."""
    depends: dict[Var, int] = dict.fromkeys((*program.params, *program.rows), _PARAMS)
    depends |= dict.fromkeys(program.state, _BOTH)
    depends |= dict.fromkeys(program.batch, _BATCH) | dict.fromkeys(program.consts, 0)
    for at, eqn in enumerate(program.eqns):
        flags = 0
        for atom in eqn.invars:
            flags |= depends[atom] if isinstance(atom, Var) else 0
        if flags & _PARAMS and flags & _BATCH or at in heavy:
            flags |= _BOTH
        for var in eqn.outvars:
            depends[var] = flags
    return depends
