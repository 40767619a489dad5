"""The parameters, inputs, equations and outputs of one stage."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn, Var

from .equations import new_like
from .line import Line, pieces_of
from .program import Program, RowRange
from .trace import Flat


@dataclasses.dataclass(frozen=True)
class Stage:
    """One of the parts into which a program is cut.

    number: 0 is the first.
    eqns: its equations, in order.
    begin: its first place on the line.
    end: the place after its last.
    pieces: maps variables of parameters that it uses to the rows they stand for.
    batch: leaves of the batch that it uses.
    state: leaves of the state that it uses or makes.
    receives: results of other stages that it uses, by the stage that makes them.
    sends: its results that others use, by the stage that uses them.
    gives: the results of the program that it makes.
    """

    number: int
    eqns: tuple[JaxprEqn, ...]
    begin: int
    end: int
    pieces: dict[Var, RowRange]
    batch: tuple[int, ...]
    state: tuple[int, ...]
    receives: dict[int, tuple[Var, ...]]
    sends: dict[int, tuple[Var, ...]]
    gives: tuple[int, ...]

    @property
    def all_sent(self) -> list[Var]:
        """Results of this stage that others use, each once."""
        return list(dict.fromkeys(var for made in self.sends.values() for var in made))


def stages_of(line: Line, cuts: Sequence[int]) -> tuple[Stage, ...]:
    """Makes the stages between cuts."""
    program, edges = line.program, [0, *cuts, len(line.places)]
    made_by = {var: at for at, eqn in enumerate(program.eqns) for var in eqn.outvars}
    order = {var: k for k, var in enumerate(made_by)}  # the same on all nodes, unlike in a set
    stage_of: dict[int, int] = {}
    for number, (begin, end) in enumerate(zip(edges, edges[1:], strict=False)):
        stage_of |= dict.fromkeys(line.places[begin:end], number)
    last = len(edges) - 2
    gives: dict[int, list[int]] = defaultdict(list)
    state_of = {k: _stage_at(begin, edges) for k, (begin, _) in enumerate(line.spans)}
    for k, out in enumerate(program.outs):
        if 1 <= k <= len(program.state):
            gives[state_of[k - 1]].append(k)
            continue
        at = made_by.get(out) if isinstance(out, Var) else None
        gives[last if at is None else stage_of.get(at, last)].append(k)
    pieces, leaf_of = pieces_of(program), {var: k for k, var in enumerate(program.batch)}
    receives: list[dict[int, list[Var]]] = []
    parts = []
    for number, (begin, end) in enumerate(zip(edges, edges[1:], strict=False)):
        own = set(line.places[begin:end])
        outs = [program.outs[k] for k in gives[number]]
        todo = [v for at in own for v in program.eqns[at].invars if isinstance(v, Var)]
        todo += [v for v in outs if isinstance(v, Var)]
        needs: set[Var] = set()
        while todo:
            var = todo.pop()
            if var in needs:
                continue
            needs.add(var)
            at = made_by.get(var)
            if at is not None and at not in stage_of:  # an equation without a place: computed here
                own.add(at)
                todo += [v for v in program.eqns[at].invars if isinstance(v, Var)]
        inputs: dict[int, list[Var]] = defaultdict(list)
        for var in sorted(needs & made_by.keys(), key=order.__getitem__):
            if (maker := stage_of.get(made_by[var], number)) != number:
                inputs[maker].append(var)
        receives.append(inputs)
        used = {var: pieces[var] for var in (*program.params, *program.rows) if var in needs}
        leaves = tuple(sorted(leaf_of[var] for var in needs & leaf_of.keys()))
        parts.append((begin, end, tuple(program.eqns[at] for at in sorted(own)), used, leaves))
    stages = []
    for number, (begin, end, eqns, used, leaves) in enumerate(parts):
        later = range(number + 1, len(parts))
        sends = {user: tuple(receives[user][number]) for user in later if number in receives[user]}
        got = {maker: tuple(variables) for maker, variables in receives[number].items()}
        merged, held = _merge_scans(program, eqns, used)
        given = tuple(gives[number])
        state = tuple(k for k, of in state_of.items() if of == number)
        stages.append(Stage(number, merged, begin, end, held, leaves, state, got, sends, given))
    return tuple(stages)


def _stage_at(place: int, edges: Sequence[int]) -> int:
    return sum(place >= edge for edge in edges[1:-1])


def _merge_scans(
    program: Program, eqns: Sequence[JaxprEqn], pieces: dict[Var, RowRange]
) -> tuple[tuple[JaxprEqn, ...], dict[Var, RowRange]]:
    """Merges consecutive iterations of a scan in one stage into one scan again.

    Returns the equations, and the pieces of parameters that they use.
    """
    scan_of = {id(program.eqns[at]): scan for at, scan in program.scans.items()}
    runs: list[list[JaxprEqn]] = []
    for eqn in eqns:
        scan = scan_of.get(id(eqn))
        if scan is not None:
            if runs and _follows(scan_of[id(runs[-1][-1])], scan):
                runs[-1].append(eqn)
            else:
                runs.append([eqn])
    merged = {id(run[-1]): run for run in runs if len(run) > 1}
    inner = {id(eqn) for run in merged.values() for eqn in run}
    flat, held = Flat((), lambda _: False), dict(pieces)
    for eqn in eqns:
        if id(eqn) in merged:
            _append_merged(flat, merged[id(eqn)], held)
        elif id(eqn) not in inner:
            flat.eqns.append(eqn)
    used = {v for eqn in flat.eqns for v in eqn.invars if isinstance(v, Var)}
    used |= {v for v in program.outs if isinstance(v, Var)}
    return tuple(flat.eqns), {var: rows for var, rows in held.items() if var in used}


def _follows(before: tuple[int, int], after: tuple[int, int]) -> bool:
    return before[0] == after[0] and before[1] + 1 == after[1]


def _append_merged(flat: Flat, run: Sequence[JaxprEqn], held: dict[Var, RowRange]) -> None:
    """Appends one scan for the iterations of `run`; joins its operands and cuts its results."""
    about = run[0].params
    carries, fixed = about["num_carry"], about["num_consts"] + about["num_carry"]
    xs = []
    for rows in zip(*(eqn.invars[fixed:] for eqn in run), strict=True):
        known = [held[row] for row in rows if row in held]
        if len(known) == len(rows):  # adjacent rows of a parameter
            xs.append(new_like(rows[0], len(rows)))
            held[xs[-1]] = RowRange(known[0].leaf, known[0].begin, known[-1].end)
        else:
            xs += flat.apply(lambda *each: jnp.concatenate(each), *rows)
    ys = run[-1].outvars[carries:]
    wholes = [new_like(y, len(run)) for y in ys]
    flat.eqns.append(
        run[0].replace(
            invars=[*run[0].invars[:fixed], *xs],
            outvars=[*run[-1].outvars[:carries], *wholes],
            params={**about, "length": len(run)},
        )
    )
    for k, whole in enumerate(wholes):
        for at, eqn in enumerate(run):
            cut = partial(jax.lax.slice_in_dim, start_index=at, limit_index=at + 1)
            flat.apply_as(eqn.outvars[carries + k], cut, whole)
