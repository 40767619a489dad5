"""Breaks jdaso on purpose, one mechanism at a time, and shows that ``make test`` is red each time.

    .venv/bin/python tools/mutants.py [WORD...]

Each mutant changes one place of the package in this checkout, runs its witnesses (tests that
``make test`` runs) and puts the place back. A mutant whose witnesses pass is a hole in the tests;
so is a place that is no longer found. A witness must pass while nothing is broken: it runs once so
before its first mutant. With WORDs only mutants whose mechanism holds one.
"""

import functools
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LIMIT_SECONDS = 600


class Mutant(NamedTuple):
    """One way to break the package.

    Attributes:
        mechanism: what is broken.
        file: where, below jdaso/.
        old: the text there, once in the file.
        new: what replaces it.
        witnesses: what must fail: a test or a file of tests; of several, one must. Those below
            tests/ranks run on three ranks.
    """

    mechanism: str
    file: str
    old: str
    new: str
    witnesses: str


REFERENCE = "tests/unit/optimizers/test_against_reference.py"
PLAYED = "tests/unit/nodes"
DEFECTS = "tests/unit/optimizers/test_heat_defects.py"
EDGES = "tests/launches/ranks/test_sharded.py::test_parameters_that_are_divided_in_less_usual_ways"
DRIFT = "tests/ranks/nodes/test_drift.py"
SUPERVISOR = "tests/launches/supervisor/test_run.py"
MUTANTS = [
    Mutant(
        "merge formula of the paper",
        "_rules/merge/paper.py",
        "nodes / (2 * age + nodes)",
        "nodes / (age + nodes)",
        "tests/unit/rules/test_merge.py",
    ),
    Mutant(
        "merge formula, corrected",
        "_rules/merge/base.py",
        "lambda x, y: x + y, params",
        "lambda x, y: y, params",
        "tests/unit/rules/test_merge.py",
    ),
    Mutant(
        "outer optimizer's pseudo-gradient",
        "_rules/merge/outer.py",
        "slope = jax.tree.map(jnp.subtract, anchor, mean)",
        "slope = jax.tree.map(jnp.subtract, mean, anchor)",
        "tests/unit/rules/test_merge.py",
    ),
    Mutant(
        "age of a late result",
        "_optimizers/late.py",
        "age = state.step - state.started[f]",
        "age = state.step - state.started[f] + 1",
        f"{REFERENCE}::test_every_distance_and_delay",
    ),
    Mutant(
        "second moments of all nodes",
        "_rules/second_moments.py",
        "return square + (own - square) / nodes",
        "return own / nodes",
        "tests/unit/rules/test_second_moments.py",
    ),
    Mutant(
        "order of calls that devices make together",
        "_optimizers/blocking.py",
        "state = state._replace(started=after(token, state.started))",
        "pass",
        "tests/launches/ranks/test_ranks_per_node.py::test_a_run_goes_on_bit_for_bit_after_the_death_of_one_rank",
    ),
    Mutant(
        "second moments that stay a node's own",
        "_optimizers/shared_moments.py",
        "inner(later)[1]",
        "new",
        f"{REFERENCE}::test_every_distance_and_delay",
    ),
    Mutant(
        "second moments of a node's own from the warm-up's end",
        "_rules/decide.py",
        "last_warmup=step + 1 == phases.warmup_steps",
        "last_warmup=step == phases.warmup_steps",
        "tests/unit/optimizers/test_second_moments.py",
    ),
    Mutant(
        "moments behind the updates that read them",
        "_payload/chains.py",
        'every = _chain.bind(*every, signs="", into=0)',
        "every = jax.lax.optimization_barrier(every)",
        "tests/unit/payload/test_chains.py",
    ),
    Mutant(
        "second moments after cycling",
        "_optimizers/cycling.py",
        "u = when(~u.act.blocking, sharing.end, u)",
        "pass",
        "tests/unit/optimizers/test_second_moments.py",
    ),
    Mutant(
        "the factor of update lengths",
        "_rules/update_lengths.py",
        "jnp.where(known, new, jnp.maximum(factor, 1))",
        "jnp.maximum(factor, 1)",
        "tests/unit/rules/test_update_lengths.py",
    ),
    Mutant(
        "updates of a fixed length",
        "_optimizers/update_lengths.py",
        "flat[places[leaf]] = x + more * (x - rest)",
        "pass",
        "tests/unit/optimizers/test_update_lengths.py",
    ),
    Mutant(
        "the target from which lengths are measured",
        "_optimizers/update_lengths.py",
        "held._replace(factor=factor, target=target)",
        "held._replace(factor=factor, target=held.sent)",
        "tests/unit/optimizers/test_update_lengths.py::test_against_numpy",
    ),
    Mutant(
        "derivatives on nodes without rows",
        "array/_elementwise.py",
        "block if block.size else beside(block, *pieces)",
        "block",
        "tests/ranks/array/test_compiled.py::test_gradients_where_the_last_node_has_no_rows",
    ),
    Mutant(
        "master weights at the end of a run",
        "_optimizers/finalize.py",
        "given, params = params, masters(params, opt_state)",
        "given = params",
        "tests/unit/optimizers/test_master_weights.py",
    ),
    Mutant(
        "order of merge and start",
        "_rules/decide.py",
        "((age >= least_age) | last | start)",
        "((age > least_age) | last | start)",
        f"{REFERENCE}::test_every_distance_and_delay",
    ),
    Mutant(
        "end of the warm-up",
        "_rules/decide.py",
        "cycling = (step >= phases.warmup_steps) & (step < end)",
        "cycling = (step > phases.warmup_steps) & (step < end)",
        f"{REFERENCE}::test_phases_of_every_length",
    ),
    Mutant(
        "exact means that settle the cool-down",
        "_rules/decide.py",
        "(step < end + 2)",
        "(step < end + 1)",
        "tests/unit/rules/test_phases.py",
    ),
    Mutant(
        "plateau of the loss",
        "_rules/plateau.py",
        "plateau = look & cycling & (bad >= rule.patience)",
        "plateau = look & cycling & (bad > rule.patience)",
        "tests/unit/rules/test_phases.py",
    ),
    Mutant(
        "B from measured times: the link",
        "_rules/measured.py",
        "link, held = jnp.min(times.link_seconds)",
        "link, held = jnp.max(times.link_seconds)",
        "tests/unit/rules/test_phases.py::test_auto_interval_is_the_least_that_hides_everything",
    ),
    Mutant(
        "B from measured times: scatter",
        "_rules/measured.py",
        "jnp.where(settled, 0, FOLLOWS)",
        "jnp.where(settled, 0, 1)",
        "tests/unit/rules/test_phases.py",
    ),
    Mutant(
        "B from measured times: steps that stood still",
        "_engines/pace.py",
        "step = max(seconds - copying - waiting, 1e-9) / steps",
        "step = max(seconds, 1e-9) / steps",
        "tests/unit/engines/test_pace.py",
    ),
    Mutant(
        "the slowest host's wire",
        "_session/channels.py",
        "np.array(own)).max(axis=0)",
        "np.array(own)).min(axis=0)",
        "tests/ranks/optimizers/test_auto.py",
    ),
    Mutant(
        "period of distances and delays",
        "_rules/decide.py",
        "[cycle % len(phases.pairs)]",
        "[(cycle + 1) % len(phases.pairs)]",
        "tests/unit/rules/test_phases.py",
    ),
    Mutant(
        "deaths that are read with the end of the job",
        "_launch/first_failure.py",
        "time.monotonic() + _FIRST_SECONDS / 2",
        "time.monotonic()",
        "tests/unit/launch/test_deaths.py",
    ),
    Mutant(
        "turn of a fragment",
        "_rules/decide.py",
        "(step - begun >= turn)",
        "(step - begun > turn)",
        "tests/unit/rules/test_phases.py",
    ),
    Mutant(
        "place of a fragment's piece",
        "_payload/fragments.py",
        "update_slice_in_dim(x, piece, self.begin, self.axis)",
        "update_slice_in_dim(x, piece, self.begin - 1, self.axis)",
        "tests/unit/payload/test_fragments.py",
    ),
    Mutant(
        "fragments of models of other shapes",
        "_optimizers/exchanges.py",
        "{index} of {count} of the parameters {of}",
        "{index} of {count}",
        "tests/ranks/optimizers/test_models.py::test_models_of_other_shapes_whose_fragments_are_alike_need_no_names",
    ),
    Mutant(
        "number of fragments of divided leaves",
        "_optimizers/exchanges.py",
        "leaf.size * leaf.shards for leaf",
        "leaf.size for leaf",
        "tests/launches/ranks/test_sharded.py::test_the_number_of_fragments_is_that_of_whole_leaves",
    ),
    Mutant(
        "shard of a device",
        "_payload/placement.py",
        "number = number * size + place[name]",
        "number = number + size * place[name]",
        "tests/unit/payload/test_shards.py",
    ),
    Mutant(
        "part of a copy that a device sends",
        "_payload/shards.py",
        "jax.lax.axis_index(self._names), keepdims=False",
        "0, keepdims=False",
        "tests/unit/payload/test_shards.py",
    ),
    Mutant(
        "one header for the ranks of a node",
        "_engines/worker.py",
        "flight.rows.set_header(self._shared.of(flight.rows.header()))",
        "self._shared.of(flight.rows.header())",
        "tests/launches/ranks/test_ranks_per_node.py::test_numbers_that_are_not_finite_end_all_ranks",
    ),
    Mutant(
        "the ranks that a rank exchanges with",
        "_nodes/control.py",
        "range(topology.place, topology.num_ranks, topology.ranks_per_node)",
        "range(topology.place, topology.num_ranks, 1)",
        "tests/unit/nodes/test_ranks_played.py",
    ),
    Mutant(
        "saved part of a leaf",
        "_payload/whole.py",
        "at = at * size + int(next(places))",
        "at = at + size * int(next(places))",
        "tests/unit/payload/test_shards.py",
    ),
    Mutant(
        "an error of one device of several",
        "_exchange/host.py",
        "heads, prints, everywhere=True)",
        "heads, prints, everywhere=False)",
        "tests/launches/ranks/test_sharded.py::test_an_error_ends_the_step_on_every_device",
    ),
    Mutant(
        "a device that does not come",
        "_engines/meeting.py",
        "if not self._changed.wait_for(came, self._limit):",
        "if not self._changed.wait_for(came, 3600.0):",
        "tests/unit/engines/test_meeting.py",
    ),
    Mutant(
        "weight of the loss",
        "_payload/header.py",
        "return jnp.where(total > 0, total, 1.0)",
        "return jnp.float32(heads.shape[0])",
        "tests/unit/optimizers/test_weights.py",
    ),
    Mutant(
        "error feedback of a narrow wire",
        "_exchange/late_virtual.py",
        "sent, kept = lost * (1 - kept)",
        "sent, kept = 0 * lost * (1 - kept)",
        f"{REFERENCE}::test_narrow_wires",
    ),
    Mutant(
        "error feedback on the host",
        "_jax/ffi/fused.h",
        "back[i] *= e.sent;",
        "back[i] *= 0 * e.sent;",
        "tests/unit/engines/test_versions.py",
    ),
    Mutant(
        "error feedback on a host without a compiler",
        "_engines/passes.py",
        "found = owed.sent * error\n",
        "found = 0 * owed.sent * error\n",
        "tests/unit/engines/test_passes.py",
    ),
    Mutant(
        "the same mean with a compiler and without",
        "_engines/passes.py",
        "part *= _ONE / nodes",
        "part /= nodes",
        "tests/unit/engines/test_passes.py",
    ),
    Mutant(
        "a number that is not finite shows in its block's scale",
        "_jax/ffi/fused.h",
        "most = std::max(most, bits_of(x[begin + i]) & 0x7fffffff);",
        "most = bits_of(std::max(float_of(most), std::abs(x[begin + i])));",
        "tests/unit/engines/test_passes.py",
    ),
    Mutant(
        "the change of a merge, by the library",
        "_jax/ffi/fused.h",
        "numbers[i] = found[i] - numbers[i];",
        "numbers[i] = numbers[i] - found[i];",
        "tests/unit/engines/test_versions.py",
    ),
    Mutant(
        "a sum takes every node's row",
        "_jax/ffi/fused.h",
        "for (int64_t row = 1; row < s.shape.nodes; ++row) {",
        "for (int64_t row = 2; row < s.shape.nodes; ++row) {",
        "tests/unit/engines/test_passes.py",
    ),
    Mutant(
        "a link between two nodes is polled often",
        "_engines/mpi4py.py",
        "if self._scatter.Get_size() > 2 else 0",
        "if self._scatter.Get_size() > 1 else 0",
        "tests/unit/engines/test_mpi4py_engine.py",
    ),
    Mutant(
        "memory is used again once nothing refers to it",
        "_engines/recycled.py",
        "self._idle[block.size].append(block)",
        "del block",
        "tests/unit/engines/test_recycled.py",
    ),
    Mutant(
        "memory that nothing needs goes back",
        "_engines/recycled.py",
        "self._older, self._idle = self._idle, _blocks()",
        "self._older, self._idle = self._older, self._idle",
        "tests/unit/engines/test_recycled.py",
    ),
    Mutant(
        "rows that may be sent again are not overwritten by their sums",
        "_engines/sums.py",
        "if narrow or self._channel.repeats else place",
        "if narrow else place",
        "tests/unit/nodes/test_shrink_played.py",
    ),
    Mutant(
        "an exchange drops its memory",
        "_engines/in_flight.py",
        "self.numbers = self.rows = self.place = None",
        "self.numbers = None",
        "tests/unit/engines/test_channel.py",
    ),
    Mutant(
        "losses of blocking and cycling updates count alike",
        "_optimizers/blocking.py",
        "return blocking_header(value, step, bits, weight, loss_weight=u.given_weight)",
        "return blocking_header(value, step, bits, weight)",
        "tests/unit/optimizers/test_weights.py",
    ),
    Mutant(
        "weights of a run's end",
        "_optimizers/finalize.py",
        "return None if (of_all == of_all[0]).all() else own",
        "return None",
        "tests/unit/optimizers/test_weights.py",
    ),
    Mutant(
        "the common point of several nodes that go on from one",
        "checkpoint/_restore.py",
        "anew = NEVER_STARTED if of_one else BEGUN_ANEW",
        "anew = BEGUN_ANEW",
        "tests/ranks/checkpoint/test_checkpoint.py"
        "::test_several_nodes_go_on_from_one_as_after_a_warm_up",
    ),
    Mutant(
        "the phases of several nodes that go on from one",
        "checkpoint/_restore.py",
        "if of_one and has_other_phases(first, session):",
        "if False:",
        "tests/ranks/checkpoint/test_other_settings.py"
        "::test_several_nodes_go_on_from_one_with_the_phases_of_the_program",
    ),
    Mutant(
        "the numbers that a failed save holds",
        "checkpoint/_saver.py",
        "            release(flights[released:])",
        "            pass",
        "tests/ranks/checkpoint/test_other_settings.py::test_saves_that_fail_hold_no_numbers",
    ),
    Mutant(
        "a request to stop that no step has met",
        "_nodes/stopping.py",
        "if (found := _signals.unmet(signals)) is not None:",
        "if (found := None) is not None:",
        "tests/unit/nodes/test_signals.py"
        "::test_a_request_that_no_step_has_met_is_left_to_the_next_session",
    ),
    Mutant(
        "the order of two optimizers in one step",
        "_jax/in_trace.py",
        "_last[_core.trace_ctx.trace] = ref(x)",
        "pass",
        "tests/ranks/exchange/test_order.py",
    ),
    Mutant(
        "fragments without a divided leaf inside shard_map",
        "_exchange/make.py",
        "elif placement.mesh is not None and not any(placement.divisions):",
        "elif not any(placement.divisions):",
        EDGES,
    ),
    Mutant(
        "shards that are stacked over two axes",
        "_optimizers/unstacking.py",
        "if placement.devices != count or",
        "if len(placement.axes) > 1 or",
        EDGES,
    ),
    Mutant(
        "diverged copies beside specs of one device",
        "_optimizers/unstacking.py",
        "if found is None or (not session.joined and not any(divisions)):",
        "if found is None:",
        EDGES,
    ),
    Mutant(
        "placements of an optimizer that is made in a trace",
        "_optimizers/placements.py",
        "if self._made_in_trace else None",
        "if False else None",
        EDGES,
    ),
    Mutant(
        "the loss of a node's devices along divided axes",
        "_optimizers/placements.py",
        "*(name for name in self.axes if name in bound)",
        "*()",
        EDGES,
    ),
    Mutant(
        "rows that go around the nodes",
        "array/_move.py",
        "slice(0, max(end - n, 0))",
        "slice(0, 0)",
        "tests/unit/array/test_around.py",
    ),
    Mutant(
        "a checkpoint is recorded once it is written",
        "metrics/_recorder.py",
        "self._session.hooks.settle(",
        "self._session.hooks.settle(0.0 and ",
        "tests/unit/metrics/test_metrics.py::test_a_checkpoint_is_recorded_once_it_is_written",
    ),
    Mutant(
        "a file system that hangs holds up no step",
        "traces/_writer.py",
        "end = time.monotonic() + (0.0 if self._hangs else _NOW_SECONDS)",
        "end = time.monotonic() + _NOW_SECONDS",
        "tests/unit/metrics/test_metrics.py::test_a_file_system_that_hangs_holds_up_nothing",
    ),
    Mutant(
        "a checkpoint that a node could not write",
        "report/_runs.py",
        "return {step for step, _ in latest} - failed",
        "return {step for step, _ in latest}",
        "tests/unit/report/test_report.py",
    ),
    Mutant(
        "messages of a partition without parameters",
        "pipeline/_optimizer/whole.py",
        "        evaluation.end()",
        "        pass",
        "tests/unit/pipeline/test_edges.py::test_a_rank_without_parameters_sends_its_part_of_a_norm",
    ),
    Mutant(
        "trials that send nothing",
        "pipeline/_optimizer/evaluation.py",
        "gather = _alone if in_trial() else self.gather",
        "gather = self.gather",
        "tests/unit/pipeline/test_edges.py::test_a_trial_sends_nothing",
    ),
    Mutant(
        "centers without rows",
        "array/cluster/_kmeans.py",
        "return jnp.where(takes, rows[place], sums), jnp.where(takes, 1, numbers)",
        "return sums, numbers",
        "tests/unit/array/test_estimators_edges.py",
    ),
    Mutant(
        "the common point of an outer step that is lost",
        "checkpoint/_resumed.py",
        'rooms.subtract("anchor", lost)',
        "pass",
        "tests/launches/recovery/test_resized.py",
    ),
    Mutant(
        "an exchange gives way to another optimizer's",
        "_engines/flights.py",
        "self._given_up[flight.owner] = flight.ticket",
        "pass",
        "tests/unit/engines/test_flights.py",
    ),
    Mutant(
        "an exchange whose wait ended early is still in flight",
        "_engines/flights.py",
        "if not (flight.waited and flight.done.is_set())",
        "if not flight.waited",
        "tests/unit/engines/test_channel.py",
    ),
    Mutant(
        "a call of several devices drops its results",
        "_engines/meeting.py",
        "return self._found.pop(device)",
        "return self._found[device]",
        "tests/unit/engines/test_meeting.py",
    ),
    Mutant(
        "a step that is made again",
        "_engines/versions.py",
        "version.before = self._find(before, owner, model)",
        "version.before = self._find(ticket, owner) or self._find(before, owner, model)",
        "tests/unit/engines/test_versions.py",
    ),
    Mutant(
        "error feedback in the share that a merge leaves",
        "_exchange/late_virtual.py",
        "tuple(x + kept * r for x, r",
        "tuple(x + 0 * kept * r for x, r",
        "tests/unit/payload/test_wire.py::test_a_thousand_small_steps_arrive",
    ),
    Mutant(
        "scale of a block",
        "_payload/wire/blocks.py",
        "np.float32(1 / self.levels)",
        "np.float32(1 / (self.levels - 1))",
        "tests/unit/payload/test_wire.py",
    ),
    Mutant(
        "two numbers in a byte",
        "_payload/wire/int4.py",
        "(pairs & _HIGH) << _FOUR",
        "(pairs & _HIGH) << _FOUR << np.uint16(1)",
        "tests/unit/payload/test_wire.py",
    ),
    Mutant(
        "place of a leaf that lies in several chunks",
        "_engines/staging.py",
        "first = number if end > high else number + 1",
        "first = number + 1",
        "tests/unit/engines/test_staging.py",
    ),
    Mutant(
        "not-finite numbers found on the host",
        "_payload/wire/base.py",
        "return int(bad.argmax()) if bad.any() else None",
        "return None",
        "tests/unit/payload/test_wire.py",
    ),
    Mutant(
        "layout of leaves in chunks",
        "_payload/layout.py",
        "return bisect.bisect_right(self.offsets, place) - 1",
        "return bisect.bisect_left(self.offsets, place) - 1",
        "tests/unit/payload/test_packing.py",
    ),
    Mutant(
        "word of a header: a node has failed",
        "_payload/words.py",
        "WELL, FAILED, GONE = range(3)",
        "WELL, GONE, FAILED = range(3)",
        f"{PLAYED}/test_exchanges_played.py",
    ),
    Mutant(
        "numbers of updates are compared",
        "_nodes/compare.py",
        "if len(set(steps)) > 1:",
        "if False:",
        f"{PLAYED}/test_exchanges_played.py tests/unit/optimizers/test_heat_defects.py",
    ),
    Mutant(
        "a node whose numbers are not finite is left out",
        "_payload/header.py",
        "return (heads[:, BAD_LEAF] == 0) & (heads[:, STATUS] != GONE)",
        "return heads[:, STATUS] != GONE",
        "tests/unit/optimizers/test_weights.py tests/unit/optimizers/test_heat_defects.py",
    ),
    Mutant(
        "a node that died has no part in means",
        "_payload/words.py",
        "heads[dead, word] = 0  # 0.0, too",
        "pass",
        f"{PLAYED}/test_shrink_played.py",
    ),
    Mutant(
        "a checksum's sum in the handler's library",
        "_jax/ffi/mixing.h",
        "mixed ^ (mixed >> 13)",
        "mixed ^ (mixed >> 14)",
        "tests/unit/ffi/test_mixing.py",
    ),
    Mutant(
        "time of a copy from a GPU",
        "_engines/pace.py",
        "return time.thread_time() + waited_seconds()",
        "return time.thread_time()",
        "tests/unit/engines/test_channel.py",
    ),
    Mutant(
        "what a start leaves on a GPU",
        "_exchange/host.py",
        "all(x.dtype in (jnp.float32, jnp.complex64) for x in leaves)",
        "True",
        "tests/unit/exchange/test_left_on_device.py",
    ),
    Mutant(
        "numbers that a call leaves on a GPU",
        "_jax/ffi/on_device.py",
        "address = self.address + begin * self.dtype.itemsize",
        "address = self.address + begin",
        "tests/unit/ffi/test_on_device.py",
    ),
    Mutant(
        "late nodes are asked ahead of the limit",
        "_nodes/wait.py",
        "limit - min(_AHEAD_SECONDS, limit / 2)",
        "limit",
        "tests/unit/nodes/test_watchdog.py",
    ),
    Mutant(
        "checksum of what must be replicated",
        "_payload/checksums.py",
        "mixed = bits ^ (jax.lax.iota(jnp.uint32, bits.size) * np.uint32(2654435761))",
        "mixed = bits",
        "tests/unit/payload/test_checksums.py",
    ),
    Mutant(
        "a chunk is dropped",
        "_engines/mpi4py.py",
        "work.give(chunk.k, chunk.residual, chunk.heads)",
        "chunk.k and work.give(chunk.k, chunk.residual, chunk.heads)",
        f"{PLAYED}/test_exchanges_played.py",
    ),
    Mutant(
        "limit of an exchange",
        "_engines/mpi4py.py",
        "if time.perf_counter() - since > self._limit:",
        "if False:",
        f"{PLAYED}/test_exchanges_played.py",
    ),
    Mutant(
        "an exchange that did not end blocks the next",
        "_engines/mpi4py.py",
        "if self._scattered or self._gathered:",
        "if False:",
        f"{PLAYED}/test_exchanges_played.py",
    ),
    Mutant(
        "limit of a wait",
        "_nodes/wait.py",
        "if waited > limit and not self._yields(waited):",
        "if False:",
        f"{PLAYED}/test_waits_played.py",
    ),
    Mutant(
        "a silent node is given up",
        "_nodes/wait.py",
        "return lost and self.waited_seconds > silence_seconds / 2",
        "return False",
        f"{PLAYED}/test_waits_played.py {PLAYED}/test_watchdog.py",
    ),
    Mutant(
        "a node that waits itself reports first",
        "_nodes/wait.py",
        "if any(node in known.waits for node in late):",
        "if False:",
        f"{PLAYED}/test_waits_played.py {PLAYED}/test_watchdog.py",
    ),
    Mutant(
        "a failure is told to all",
        "_nodes/detector.py",
        'self._messages.send_all(tag, text.encode(errors="backslashreplace"))',
        "pass",
        f"{PLAYED}/test_waits_played.py",
    ),
    Mutant(
        "a node that leaves is noticed",
        "_nodes/detector.py",
        "self.known.note_left(node)",
        "pass",
        f"{PLAYED}/test_waits_played.py {PLAYED}/test_ends_played.py",
    ),
    Mutant(
        "a node that died is noticed",
        "_nodes/detector.py",
        "new = self._messages.newly_dead()",
        "new = []",
        f"{PLAYED}/test_ends_played.py {PLAYED}/test_shrink_played.py",
    ),
    Mutant(
        "all nodes stop at one step",
        "_nodes/stopping.py",
        "self._tell_all(STOP, max(self._held.values()))",
        "self._tell_all(STOP, min(self._held.values()))",
        f"{PLAYED}/test_stopping.py {PLAYED}/test_stops_played.py",
    ),
    Mutant(
        "offset of clocks",
        "traces/_clock_offset.py",
        "rounds.append((sent, there[0], clock()))",
        "rounds.append((sent, there[0] + 1, clock()))",
        f"{PLAYED}/test_clock_offsets.py",
    ),
    Mutant(
        "shards that pmap has stacked, at the end of a run",
        "_optimizers/unstacking.py",
        "    if placement is None:\n        devices",
        "    if True:\n        devices",
        "tests/launches/ranks/test_sharded.py::test_pmap_and_finalize_with_shards_or_copies",
    ),
    Mutant(
        "errors of numbers in flight, owed by a merged fragment",
        "checkpoint/_resumed.py",
        'if first.flights[source].in_flight and not in_flight and kind in ("error", "paid"):',
        "if False:",
        "tests/unit/checkpoint/test_flights.py",
    ),
    Mutant(
        "place of a saved number in its leaf",
        "_payload/spans.py",
        "begin[piece.axis] += piece.begin",
        "begin[piece.axis] += 0",
        "tests/unit/checkpoint/test_flights.py",
    ),
    Mutant(
        "numbers in flight that another rank has saved",
        "checkpoint/_pieces.py",
        "max(a, b), min(a + n, b + m)",
        "b, min(a + n, b + m)",
        "tests/unit/checkpoint/test_flights.py",
    ),
    Mutant(
        "a fragment in flight without all of its numbers",
        "checkpoint/_resumed.py",
        "return found >= rooms.size",
        "return True",
        "tests/unit/checkpoint/test_flights.py",
    ),
    Mutant(
        "a byte of a checkpoint",
        "checkpoint/_digests.py",
        'return hashlib.file_digest(file, "sha256").hexdigest()',
        'return "0"',
        "tests/unit/checkpoint/test_checkpoint.py",
    ),
    Mutant(
        "an error that a peer's death may have caused is reported late",
        "_launch/reports.py",
        "if peers and _to_supervisor:",
        "if False:",
        "tests/unit/launch/test_deaths.py",
    ),
    Mutant(
        "gradients of numbers that all nodes share",
        "array/_varied.py",
        "if at.nodes == 1 or",
        "if True or at.nodes == 1 or",
        "tests/launches/ranks/test_suites.py::test_suite_passes_on_every_rank[mpich-2]",
    ),
    Mutant(
        "nodes that make the same call on arrays",
        "array/_connected.py",
        "if both[0] != -both[1]:",
        "if False:",
        "tests/launches/limits/test_arrays.py::test_every_node_says_what_one_did_wrong",
    ),
    Mutant(
        "rows before a node's own in a convolution",
        "array/_neighbouring.py",
        "slice(min(max(begin - width + 1, 0)",
        "slice(min(max(begin - width + 2, 0)",
        "tests/unit/array/test_numpy_names.py",
    ),
    Mutant(
        "sum of products over a split letter",
        "array/_einsum.py",
        'return Array(at.reduce(block, "sum"), ArrayLayout(shape), at)',
        "return Array(block, ArrayLayout(shape), at)",
        "tests/unit/array/test_numpy_names.py",
    ),
    Mutant(
        "derivative of points that all nodes have",
        "array/_conditions.py",
        "points = [varied(one, x.world) for one in points]",
        "pass",
        "tests/ranks/array/test_compiled.py",
    ),
    Mutant(
        "first place of equal rows",
        "array/_unique_rows.py",
        "numbers[chosen, 0]",
        "numbers[chosen, 1]",
        "tests/unit/array/test_numpy_names.py",
    ),
    Mutant(
        "whole numbers of NumPy beside an array",
        "array/_whole_numbers.py",
        "if isinstance(x, np.ndarray | np.integer):",
        "if False:",
        "tests/unit/array/test_whole_numbers.py",
    ),
    Mutant(
        "a Python integer outside of a narrow type",
        "array/_whole_numbers.py",
        "return not about.min <= x <= about.max",
        "return False",
        "tests/unit/array/test_whole_numbers.py",
    ),
    Mutant(
        "schedules of a node without data",
        "_optimizers/learning_rate.py",
        "return jnp.where(condition, new, old) if moves else new",
        "return jnp.where(condition, new, old)",
        "tests/unit/optimizers/test_weights.py::test_schedules_of_nodes_that_have_run_out_go_on",
    ),
    Mutant(
        "means of one step in one channel",
        "_exchange/collectives.py",
        'name = f"mean {place_in_trace()}"',
        'name = f"mean {place_in_trace()[:0]}"',
        "tests/ranks/exchange/test_calls_by_name.py"
        "::test_means_of_one_shape_in_one_step_have_a_channel_each",
    ),
    Mutant(
        "the communicator of comparisons",
        "_nodes/compare.py",
        "if self._comm is None or control.survives:",
        "if True:",
        f"{DRIFT}::test_a_bit_is_found_while_the_program_is_in_a_call_of_its_own",
    ),
    Mutant(
        "means of branches in one channel",
        "_jax/in_trace.py",
        "numbers = [*(_places[trace] for trace in stack[1:]), _next(stack[-1])]",
        "numbers = [_next(stack[-1])]",
        "tests/ranks/exchange/test_calls_by_name.py"
        "::test_means_in_branches_have_channels_of_their_own",
    ),
    Mutant(
        "versions of an optimizer that is made anew",
        "_engines/versions.py",
        "if some[-1].model == model]",
        "if False]",
        "tests/unit/engines/test_versions.py"
        " tests/ranks/optimizers/test_wrappers.py::test_a_rate_that_is_set_by_hand_goes_on",
    ),
    Mutant(
        "NaN in the error feedback of synchronous training",
        "_optimizers/synchronous_means.py",
        "jnp.where(*each) for each in news",
        "each[1] for each in news",
        f"{DEFECTS}::test_defect_17_a_loss_scale_skip_happens_on_all_nodes",
    ),
    Mutant(
        "integers in a mean of parameters",
        "_optimizers/synchronous_means.py",
        "() if self.session.control.survives else to_halves(inner)",
        "()",
        "tests/ranks/optimizers/test_wrappers.py"
        "::test_a_skip_of_one_node_in_a_mean_of_parameters_is_node_0s_for_all",
    ),
    Mutant(
        "lengths of parameters after None",
        "_optimizers/update_lengths.py",
        "[place for place, _ in exchanged(u.params, u.updates)]",
        "[k for k, _ in enumerate(exchanged(u.params, u.updates))]",
        "tests/unit/optimizers/test_update_lengths.py",
    ),
    Mutant(
        "messages of more bytes than MPI counts",
        "_mpi/arrays.py",
        "if max(sizes, default=0) <= _MOST_COUNT:",
        "if True:",
        "tests/ranks/array/test_moves.py",
    ),
    Mutant(
        "a saved job behind a pipe",
        "_launch/supervise.py",
        "if deaths.saved and (job.passed_on or status == 0):",
        "if deaths.saved and job.passed_on and status != 0:",
        SUPERVISOR,
    ),
    Mutant(
        "starts of exchanges by ticket",
        "_engines/channel.py",
        "flight.started = self._control.known.heartbeats.note_start(self._number)",
        "flight.started = 2, flight.ticket\n"
        "        self._control.known.heartbeats.note(2, flight.ticket)",
        f"{PLAYED}/test_exchanges_played.py",
    ),
    Mutant(
        "the trial of an optimizer that a trace makes",
        "_optimizers/stand_ins.py",
        "if found.failure:",
        "if False:",
        "tests/unit/optimizers/test_second_moments.py"
        "::test_around_daso_injected_hyperparameters_change_nothing",
    ),
    Mutant(
        "master weights inside of daso",
        "_optimizers/master_weights.py",
        "isinstance(x, MasterWeights | DasoState)",
        "isinstance(x, MasterWeights)",
        "tests/unit/optimizers/test_master_weights.py"
        "::test_those_of_the_inner_optimizer_are_its_own",
    ),
    Mutant(
        "whole numbers that do not fit 32 bits",
        "array/_whole_numbers.py",
        "if least < about.min or most > about.max:",
        "if False:",
        "tests/unit/array/test_files.py",
    ),
    Mutant(
        "the next row of a file of lines",
        "array/_formats/_csv.py",
        "_ends[key] = number, place",
        "_ends[key] = number + 1, place",
        "tests/unit/array/test_files.py",
    ),
    Mutant(
        "rows of a class in several parts",
        "array/naive_bayes/_gaussian.py",
        "new * (1 - new) * between**2",
        "0 * between",
        "tests/unit/array/test_estimators.py",
    ),
    Mutant(
        "programs that a study keeps",
        "fabric/_study/launch.py",
        "if compiled and (cluster or not hosts)",
        "if False",
        "tests/unit/fabric/test_study_runner.py",
    ),
    Mutant(
        "equal distances in one order on all nodes",
        "array/neighbors/_classifier.py",
        "jax.lax.sort(both, num_keys=2)",
        "jax.lax.sort(both, num_keys=1)",
        "tests/unit/array/test_estimators.py",
    ),
    Mutant(
        "columns that are nearly the same",
        "array/linalg/_solve.py",
        "for _ in range(2):  # columns",
        "for _ in range(1):  # columns",
        "tests/unit/array/test_linalg.py",
    ),
    Mutant(
        "a node that broadcasts other shards",
        "_exchange/placing.py",
        "if begins != said[first].get(path, begins):",
        "if False:",
        "tests/launches/ranks/test_ranks_per_node.py::test_numbers_that_are_not_finite_end_all_ranks",
    ),
    Mutant(
        "a manifest that was changed",
        "checkpoint/_files.py",
        'if text["sha256"] != digest(_dumps(body)):',
        "if False:",
        "tests/unit/checkpoint/test_checkpoint.py",
    ),
    Mutant(
        "restart from the last checkpoint",
        "checkpoint/_checkpoints.py",
        "return self._parts.saves(self.folder)[::-1]",
        "return self._parts.saves(self.folder)",
        "tests/unit/checkpoint/test_checkpoint.py",
    ),
    Mutant(
        "rows to send",
        "_engines/staging.py",
        "source = flat[number][a - begin : b - begin]",
        "source = flat[number][a - begin : b - begin][::-1]",
        "tests/unit/engines/test_staging.py",
    ),
    Mutant(
        "saves that all partitions have",
        "pipeline/_parts.py",
        "*_ in whole.values()}",
        "*_ in ()}",
        "tests/ranks/pipeline/test_restored.py::test_saves_that_one_partition_cannot_write_cost_no_earlier_one",
    ),
    Mutant(
        "newest save of a pipeline",
        "pipeline/_parts.py",
        "(manifest.number, folder.name): Save(",
        "(manifest.step, folder.name): Save(",
        "tests/ranks/pipeline/test_restored.py::test_the_newest_is_the_last_that_was_saved",
    ),
    Mutant(
        "parts of one save of a pipeline",
        "pipeline/_parts.py",
        '{f"{found.run}-{found.number}": (path, found)',
        '{f"{found.step}": (path, found)',
        "tests/ranks/pipeline/test_restored.py::test_parts_of_two_saves_of_one_step_are_never_joined",
    ),
    Mutant(
        "end of the ranks of a node",
        "_session/joining.py",
        "wait_at_end(lambda: comm.Ibarrier().Test)",
        "wait_at_end(lambda: lambda: True)",
        "tests/launches/limits/test_ends.py::test_a_rank_may_work_on_after_the_others_of_its_node",
    ),
    Mutant(
        "step pending when a program fails",
        "_session/ending.py",
        "control.known.end_waits_in(_LAST_SECONDS)",
        "pass",
        "tests/launches/limits/test_ends.py::test_a_failed_program_does_not_wait_for_its_last_step",
    ),
    Mutant(
        "signals for a rank",
        "_launch/witness_process.py",
        "for number in _FOR_THE_RANK:",
        "for number in ():",
        "tests/unit/nodes/test_witness.py::test_signals_for_the_rank_do_not_end_its_witness",
    ),
    Mutant(
        "GPUs in another order",
        "_mpi/gpus.py",
        "[gpus[own.index(gpu)] for gpu in mine]",
        "[gpus[in_order.index(gpu)] for gpu in mine]",
        "tests/unit/mpi/test_topology.py",
    ),
    Mutant(
        "advice for claims of one side",
        "fabric/_study/findings.py",
        "bound, alpha / settings, power_below)\n    mirrored",
        "bound, alpha / settings)\n    mirrored",
        "tests/unit/fabric/test_study_claims.py",
    ),
    Mutant(
        "order of a pipeline's actions",
        "pipeline/_schedule.py",
        "order += [action, backward[k]]",
        "order += [backward[k], action]",
        "tests/unit/pipeline/test_schedule.py",
    ),
    Mutant(
        "a checkpoint of other nodes is averaged",
        "checkpoint/_resize.py",
        "(x / nodes).astype",
        "(x / 1).astype",
        "tests/ranks/checkpoint",
    ),
    Mutant(
        "order of a study's launches within replicates",
        "fabric/_study/crossing.py",
        'random.Random(f"{seed} {replicate}")',
        'random.Random(f"{seed}")',
        "tests/unit/fabric/test_study_declaration.py",
    ),
    Mutant(
        "torn last line of a study's journal",
        "fabric/_study/journal.py",
        "        os.truncate(path, len(whole))",
        "        pass",
        "tests/unit/fabric/test_study_journal.py",
    ),
    Mutant(
        "finished cell of a study that runs again",
        "fabric/_study/runner.py",
        "if (cell.id, replicate) not in journal",
        "if replicate >= 0",
        "tests/unit/fabric/test_study_runner.py",
    ),
    Mutant(
        "processes of a cell at its limit",
        "fabric/_study/processes.py",
        "job.end(lambda: process.poll() is None, _END_SECONDS)",
        "process.kill()",
        "tests/unit/fabric/test_study_runner.py",
    ),
    Mutant(
        "bytes that cross another fabric",
        "fabric/_study/outcomes.py",
        "counted.get(name, (0, 0))) for name in fabric.interface",
        "counted.get(name, (0, 0))) for name in counted",
        "tests/unit/fabric/test_study_runner.py "
        "tests/launches/cluster/test_study.py::test_bytes_that_cross_another_interface_are_caught",
    ),
    Mutant(
        "bytes that pass by the fabric on another node than the first",
        "fabric/_study/outcomes.py",
        "for name in _COUNTS}, *outcome.other_nodes]",
        "for name in _COUNTS}]",
        "tests/unit/fabric/test_study_runner.py",
    ),
    Mutant(
        "attempt at a launch that counts",
        "fabric/_study/journal.py",
        "if _attempt(row) == last[_launch(row)]",
        "if _attempt(row) == 1",
        "tests/unit/fabric/test_study_runner.py",
    ),
    Mutant(
        "hosts of an allocation that a cell takes",
        "fabric/_study/allocation.py",
        'hosts[: int(cell.factors["nodes"])]',
        'hosts[-int(cell.factors["nodes"]) :]',
        "tests/unit/fabric/test_study_allocation.py",
    ),
    Mutant(
        "memory of a launch beyond its limit",
        "fabric/_study/memory.py",
        'echo 0 > "$0" && exec "$@"',
        'exec "$@"',
        "tests/launches/cluster/test_study.py::test_a_cell_that_takes_more_memory_than_its_limit",
    ),
    Mutant(
        "faces that a stencil exchanges",
        "fabric/_study/workloads/_blocks.py",
        "return 2 * self.axis + (self.side < 0)",
        "return 2 * self.axis + (self.side > 0)",
        "tests/unit/fabric/test_study_workloads.py",
    ),
    Mutant(
        "correction of a claim for its number of settings",
        "fabric/_study/settled.py",
        "np.arange(len(ps), 0, -1) * ps[order]",
        "1 * ps[order]",
        "tests/unit/fabric/test_study_rates.py",
    ),
    Mutant(
        "cells of a claim that have no rows",
        "fabric/_study/findings.py",
        "for level, cell in compared(claim, cells)",
        "for level, cell in compared(claim, [one.factors for one in launches])",
        "tests/unit/fabric/test_study_claims.py",
    ),
    Mutant(
        "margin of an equivalence test",
        "fabric/_study/equivalence.py",
        '_p(logs, bound, "less"), _p(logs, -bound, "greater")',
        '_p(logs, 2 * bound, "less"), _p(logs, -2 * bound, "greater")',
        "tests/unit/fabric/test_study_rates.py",
    ),
    Mutant(
        "a product of matrices in parts",
        "array/_in_place.py",
        "added = before + part.astype(total.dtype)",
        "added = part.astype(total.dtype)",
        "tests/unit/array/test_against_numpy.py::test_products_of_more_than_one_piece",
    ),
    Mutant(
        "the memory of a result that comes in parts",
        "array/_in_place.py",
        "PIECE_BYTES = 1 << 23",
        "PIECE_BYTES = 1 << 30",
        "tests/launches/records/test_memory.py::test_arrays_take_little_memory_beyond_operands_and_result",
    ),
    Mutant(
        "derivatives of blocks that pass from node to node",
        "array/_connected.py",
        "lambda _, derivative: (self._shift_compiled(derivative, x.shape, source, to),),",
        "lambda _, derivative: (self._shift_compiled(-derivative, x.shape, source, to),),",
        "tests/ranks/array/test_compiled.py::test_gradients_of_products_where_the_last_node_has_no_rows",
    ),
    Mutant(
        "narrow gradients that are summed over micro-batches",
        "pipeline/_plan/microbatch.py",
        "narrow = jax.numpy.finfo(dtype).bits < 32 and len(self.sizes) > 1",
        "narrow = False",
        "tests/unit/pipeline/test_sums.py",
    ),
    Mutant(
        "samples that differ inside a pipeline",
        "pipeline/_run/given.py",
        "if (apart := np.flatnonzero(of_pipelines.min(1) != of_pipelines.max(1))).size:",
        "if (apart := np.flatnonzero(of_pipelines.min(1) < -np.inf)).size:",
        "tests/ranks/pipeline/test_given.py::test_samples_that_differ_inside_a_pipeline_are_refused",
    ),
    Mutant(
        "whole numbers of a pipeline's state",
        "pipeline/_fit.py",
        "states = broadcast(mean(states, replicas), replicas)",
        "states = mean(states, replicas)",
        "tests/ranks/pipeline/test_given.py::test_the_whole_numbers_of_a_state_are_the_same_on_all_nodes",
    ),
    Mutant(
        "communicators of a closed pipeline",
        "_nodes/mail.py",
        "            self._control.release(self._comm)",
        "            pass",
        "tests/ranks/pipeline/test_closed.py::test_a_closed_pipeline_leaves_nothing",
    ),
    Mutant(
        "the batch at which a restarted fit continues",
        "pipeline/_fit.py",
        "skip_batches(begin - number - 1)",
        "skip_batches(begin)",
        "tests/unit/data/test_loader.py::test_fit_takes_a_loader_and_does_not_read_what_it_has_seen",
    ),
    Mutant(
        "losses that are not finite in a report",
        "report/_rows.py",
        'return number if np.isfinite(number) else float("inf")',
        'return number if np.isfinite(number) else float("nan")',
        "tests/unit/report/test_report.py",
    ),
    Mutant(
        "the order of a run's starts",
        "report/_starts.py",
        "found.append(min(free or heads))",
        "found.append(min(heads))",
        "tests/unit/report/test_report.py",
    ),
    Mutant(
        "damaged rows of a trace",
        "traces/_file.py",
        'found.damaged.append(f"{path.name}, line {number}: {why}")',
        "raise",
        "tests/unit/traces/test_traces.py",
    ),
    Mutant(
        "files of data that stay open",
        "data/_open_files.py",
        "while len(_idle) > MOST_IDLE:",
        "while False:",
        "tests/unit/data/test_sources.py::test_npy_of_more_shards_than_may_be_open",
    ),
    Mutant(
        "another file with the name of one that was open",
        "data/_open_files.py",
        "if _identity(number) != self._file:",
        "if False:",
        "tests/unit/data/test_sources.py::test_npy_of_more_shards_than_may_be_open",
    ),
    Mutant(
        "arrays of a file that saving would remove",
        "array/io.py",
        'if others := [name for name in there if name != dataset.strip("/")]:',
        "if others := []:",
        "tests/unit/array/test_files.py::test_a_file_that_holds_another_array_is_not_replaced",
    ),
    Mutant(
        "rows of an array that a node sends to another layout",
        "array/_move.py",
        "[shifted(overlap(mine, new.slice_of(k)), mine.start) for k in range(nodes)]",
        "[shifted(overlap(mine, new.slice_of(0)), mine.start) for k in range(nodes)]",
        "tests/unit/array/test_against_numpy.py",
    ),
    Mutant(
        "spread of nodes' means in a variance",
        "array/_moments.py",
        "jnp.sum(spreads.real.astype(weights.dtype), 0) + between",
        "jnp.sum(spreads.real.astype(weights.dtype), 0)",
        "tests/unit/array/test_against_numpy.py",
    ),
    Mutant(
        "rows that are left over of those summed side by side",
        "array/_moments.py",
        "total = jnp.sum(sums, 0) + jnp.sum(_squared(flat[whole:], about), 0)",
        "total = jnp.sum(sums, 0)",
        "tests/unit/array/test_moments.py",
    ),
    Mutant(
        "the best of the rows that are drawn for a first center",
        "array/cluster/_groups.py",
        "best = int(np.argmin(_sums(found, world)))",
        "best = 0",
        "tests/unit/array/test_estimators.py::test_first_centers_are_as_good_as_scikit_learns",
    ),
    Mutant(
        "an operand that is too large to be whole on each node",
        "array/_passing.py",
        "or not is_one_piece(x.nbytes):",
        "or False:",
        "tests/unit/array/test_movement.py::test_a_block_crosses_each_link_once",
    ),
    Mutant(
        "integers below that of the lowest number",
        "array/_sort.py",
        "order = np.maximum(order, order_of(np.array([-np.inf], dtype)))",
        "pass",
        "tests/unit/array/test_sorted.py::test_sorting_is_stable_and_shares_the_rows_out",
    ),
    Mutant(
        "equal numbers of earlier nodes first",
        "array/_sort.py",
        "earlier = np.cumsum(ties, 0) - ties",
        "earlier = 0 * ties",
        "tests/unit/array/test_sorted.py",
    ),
    Mutant(
        "a rank that fails before its session ends the job",
        "_launch/early_failure.py",
        '_state["failed"] = True',
        "pass",
        f"{PLAYED}/test_before_a_session.py",
    ),
    Mutant(
        "the roll of the ranks that came to the start",
        "_mpi/start.py",
        "self._here.add(source)",
        "pass",
        f"{PLAYED}/test_before_a_session.py",
    ),
    Mutant(
        "nodes at different places in the program",
        "_nodes/differences.py",
        "if any(what != usual for what in actions):",
        "if False:",
        f"{PLAYED}/test_agreements_played.py",
    ),
    Mutant(
        "nodes with different settings",
        "_nodes/control.py",
        "if (everyone == everyone[0]).all():",
        "if True:",
        f"{PLAYED}/test_agreements_played.py",
    ),
    Mutant(
        "nodes whose leaves have different shapes",
        "_optimizers/agree.py",
        '*((f"leaf {leaf.path}", str(leaf)) for leaf in leaves)',
        "",
        f"{PLAYED}/test_agreements_played.py",
    ),
    Mutant(
        "nodes that begin with different bits",
        "_optimizers/agree.py",
        'facts.append((f"bits of leaf {leaf.path}", hash_bits(x)))',
        "pass",
        f"{PLAYED}/test_agreements_played.py",
    ),
    Mutant(
        "bits that differ between nodes end the step",
        "_exchange/replicated.py",
        "return self.due & apart(heads)",
        "return self.due & False",
        DRIFT,
    ),
    Mutant(
        "nodes left out do not count as different",
        "_exchange/replicated.py",
        "jnp.any(counts & (words",
        "jnp.any((words",
        f"{DEFECTS}::test_defect_12_a_node_whose_parameters_are_bad_leaves_the_others_alone",
    ),
    Mutant(
        "the leaf whose bits differ",
        "_nodes/compare.py",
        "if (words == words[0]).all():",
        "if True:",
        f"{PLAYED}/test_exchanges_played.py",
    ),
    Mutant(
        "a node whose phase differs from the others'",
        "_optimizers/late.py",
        "checksum=bits + self._sum_of_phase(state),",
        "checksum=bits,",
        f"{DRIFT}::test_all_nodes_name_leaf_and_node",
    ),
    Mutant(
        "a node whose phase makes it exchange at other steps",
        "_nodes/compare.py",
        "return drifted(step, odd) if any(name in odd for name in _DRIVES) else text",
        "return text",
        f"{DRIFT}::test_a_schedule_that_has_changed_is_named",
    ),
    Mutant(
        "a package that is too old for jdaso",
        "doctor/_software.py",
        "return _numbers(version) < _numbers(least)",
        "return version < least",
        "tests/unit/doctor/test_doctor.py",
    ),
    Mutant(
        "installations that differ between ranks",
        "doctor/_findings.py",
        "if differ and finding.alike else",
        "if False else",
        "tests/unit/doctor/test_doctor.py",
    ),
    Mutant(
        "data of an abandoned request stays for MPI",
        "_mpi/requests.py",
        "_unfinished.append((request, data))",
        "pass",
        "tests/unit/mpi/test_requests.py",
    ),
    Mutant(
        "GPUs of a host among its ranks",
        "_mpi/gpus.py",
        "gpus[rank * len(gpus) // ranks :",
        "gpus[rank * (len(gpus) // ranks) :",
        "tests/unit/mpi/test_topology.py",
    ),
    Mutant(
        "a node's share of the examples",
        "data/_deal.py",
        "reshape(num_batches, num_nodes, batch_size)[:, node]",
        "reshape(num_batches, num_nodes, batch_size)[:, 0]",
        "tests/unit/data/test_deal.py",
    ),
    Mutant(
        "a node's part of a loader's batch",
        "data/_batches.py",
        "begin = (part * all_devices + own[0]) * each",
        "begin = own[0] * each",
        "tests/unit/data/test_loader.py",
    ),
    Mutant(
        "batches on the devices ahead of the loop",
        "data/_ahead.py",
        "number < self._taken + self._prefetch",
        "True",
        "tests/unit/data/test_loader.py::test_no_more_is_read_ahead_than_promised",
    ),
    Mutant(
        "order of samples in blocks",
        "data/_order.py",
        "begin = b * (_seed_of(self.seed, epoch, full) % (full + 1)) if short",
        "begin = b * full if short",
        "tests/unit/data/test_order.py",
    ),
    Mutant(
        "the mean of a node's gradients",
        "_exchange/within_node.py",
        "lambda x: jax.lax.pmean(x, axis) if",
        "lambda x: jax.lax.psum(x, axis) if",
        "tests/unit/optimizers/test_contract.py::test_the_axis_of_local_mean_averages",
    ),
    Mutant(
        "a node's mean before each of its updates",
        "_optimizers/stages.py",
        "self._together(u), lambda: mean_locally(u.updates, axis), lambda: u.updates",
        "self._together(u), lambda: u.updates, lambda: u.updates",
        f"{DEFECTS}::test_defect_03_local_steps_are_never_thrown_away",
    ),
    Mutant(
        "place of a pipeline's message",
        "_nodes/mail.py",
        "self._comm.Irecv(part, address.node, address.tag)",
        "self._comm.Irecv(part, address.node)",
        f"{PLAYED}/test_mail_played.py",
    ),
    Mutant(
        "gradients of parameters that a pipeline's stages share",
        "pipeline/_run/gradients.py",
        "grads[k] = grads[k] + self._place.put(more)",
        "grads[k] = self._place.put(more)",
        "tests/unit/pipeline/test_program.py::test_four_stages",
    ),
    Mutant(
        "cuts of a pipeline with the least traffic",
        "pipeline/_plan/search.py",
        "found = (size + more, max(largest, cost), begin)",
        "found = (size, max(largest, cost), begin)",
        "tests/unit/pipeline/test_cut.py",
    ),
    Mutant(
        "every byte of a job's output",
        "_launch/relay.py",
        "while rest:",
        "if rest:",
        f"{SUPERVISOR}::test_bytes_arrive_as_they_are",
    ),
    Mutant(
        "output that is lost without its reader",
        "_launch/relay.py",
        "self._lost += lost",
        "self._lost += 0",
        f"{SUPERVISOR}::test_lost_output_is_reported",
    ),
    Mutant(
        "a launcher that has ended gets no signal from the guard",
        "_launch/guard.py",
        "for pid in {*left, self.leader} if runs() else left:",
        "for pid in {*left, self.leader}:",
        "tests/unit/launch/test_guard.py",
    ),
    Mutant(
        "a job whose supervisor was killed is asked to save",
        "_launch/guard.py",
        "        job.tell(signal.SIGTERM)",
        "        pass",
        f"{SUPERVISOR}::test_every_signal_saves_first",
    ),
    Mutant(
        "one signal too many ends the process",
        "_launch/signals.py",
        "end = any([taker.signalled(number) for taker in takers])",
        "end = [taker.signalled(number) for taker in takers] == []",
        f"{PLAYED}/test_signals.py",
    ),
    Mutant(
        "the program's own handler of a signal comes back",
        "_launch/signals.py",
        "            handler.put_back()\n            del _handlers[number]",
        "            del _handlers[number]",
        f"{PLAYED}/test_signals.py",
    ),
    Mutant(
        "a save when the program ends",
        "checkpoint/_saver.py",
        "register(_finish_all)",
        "pass",
        "tests/unit/checkpoint/test_folder.py",
    ),
    Mutant(
        "a manifest that cannot be read",
        "checkpoint/_complete.py",
        "return None if _is_missing(manifest_path(folder, 0)) else error",
        "return None",
        "tests/unit/checkpoint/test_folder.py",
    ),
    Mutant(
        "a folder that another run made again",
        "checkpoint/_folder.py",
        "return self._lock is not None and self._lock.is_at(self.path)",
        "return self._lock is not None",
        "tests/unit/checkpoint/test_folder.py",
    ),
    Mutant(
        "names that orbax uses",
        "checkpoint/_state.py",
        "if _RESERVED.fullmatch(name.lower()):",
        "if False:",
        "tests/unit/checkpoint/test_folder.py",
    ),
    Mutant(
        "keys of new nodes",
        "checkpoint/_resize.py",
        "jax.random.fold_in(jax.random.fold_in(key, _NEW_NODES), turn)",
        "jax.random.fold_in(key, turn)",
        "tests/unit/checkpoint/test_folder.py",
    ),
    Mutant(
        "large arrays of numbers that tensorstore does not know",
        "checkpoint/_arrays.py",
        'return dtype.kind in "mM" or long or dtype.name in ("int2", "uint2", "uint4")',
        'return dtype.kind in "mM" or dtype.name in ("int2", "uint2", "uint4")',
        "tests/unit/checkpoint/test_folder.py",
    ),
    Mutant(
        "the measured wire of a run that goes on",
        "checkpoint/_facts.py",
        "session.go_on_with(wire)",
        "pass",
        "tests/ranks/checkpoint/test_checkpoint.py",
    ),
    Mutant(
        "a measured wire that compiled updates use",
        "_session/channels.py",
        "if not any(own is self._fastest and channel.versions for (_, own, _), channel in pairs):",
        "if pairs is not None:",
        "tests/ranks/checkpoint/test_checkpoint.py",
    ),
    Mutant(
        "whose numbers a model merges",
        "_engines/versions.py",
        "of_model = (x for x in known if model is None or x.model == model)",
        "of_model = iter(known)",
        "tests/unit/engines/test_versions.py tests/ranks/optimizers/test_models.py",
    ),
    Mutant(
        "the number of a model in its states",
        "_session/optimizers.py",
        "self._models += 1",
        "self._models += 0",
        "tests/ranks/optimizers/test_models.py",
    ),
    Mutant(
        "an inner state that begins with infinity on one node",
        "_optimizers/daso.py",
        """about_inner.append(("the inner optimizer's numbers", wrong or "finite"))""",
        "about_inner.append(('', ''))",
        "tests/ranks/nodes/test_disagreement.py",
    ),
    Mutant(
        "an inner state that begins with infinity",
        "_optimizers/inner.py",
        "if not _is_finite(x):",
        "if False:",
        "tests/unit/optimizers/test_not_finite.py",
    ),
    Mutant(
        "a mean of no node's numbers",
        "_exchange/late.py",
        "& ~none_weighs(self.heads)",
        "",
        "tests/unit/optimizers/test_not_finite.py",
    ),
    Mutant(
        "a discarded result between virtual nodes",
        "_exchange/late_virtual.py",
        "return result, select(result.merges, new, left) if self.anchored else new",
        "return result, new",
        "tests/unit/optimizers/test_not_finite.py",
    ),
    Mutant(
        "moments that are squares of other numbers",
        "_optimizers/find_moments.py",
        "if squared and np.allclose(fourfold, 4 * squares, rtol=0.02, atol=0):",
        "if squared:",
        "tests/unit/optimizers/test_second_moments.py",
    ),
    Mutant(
        "gradients that a chain clips before moments",
        "_optimizers/find_moments.py",
        "_GRADIENT = 1e-8",
        "_GRADIENT = 1e-4",
        "tests/unit/optimizers/test_second_moments.py",
    ),
    Mutant(
        "moments that are not shared, in the log",
        "_optimizers/settings.py",
        "if missed and _logs(session):",
        "if False:",
        "tests/unit/optimizers/test_second_moments.py",
    ),
    Mutant(
        "parameters of 8 bits",
        "_optimizers/settings.py",
        "jnp.dtype(leaf.dtype).itemsize < 2:",
        "False:",
        "tests/unit/optimizers/test_contract.py",
    ),
    Mutant(
        "float16 below its normal range",
        "_payload/trees.py",
        "return jnp.where(jnp.abs(wide) < float(about.smallest_normal), small, found)",
        "return found",
        "tests/unit/payload/test_packing.py",
    ),
    Mutant(
        "an exception of libraries in a loader",
        "data/_loader.py",
        "except BaseException:  # also one that is none of `Exception`, as libraries in Rust raise",
        "except Exception:",
        "tests/unit/data/test_loader.py",
    ),
    Mutant(
        "booleans that are added to an array's places",
        "array/_at.py",
        "    if boolean:",
        "    if False:",
        "tests/unit/array/test_edges.py",
    ),
    Mutant(
        "parts that are received in place",
        "_mpi/arrays.py",
        "[one.ctypes.data - first if one.size else 0 for one in parts]",
        "[0 for one in parts]",
        "tests/ranks/array/test_moves.py",
    ),
    Mutant(
        "the digits of a cut",
        "array/_sort.py",
        "tops = found[:, None] | (digits << shift) | rest",
        "tops = found[:, None] | (digits << shift)",
        "tests/unit/array/test_sorted.py",
    ),
    Mutant(
        "numbers near the edge of a bin",
        "array/_histogram.py",
        "near = jnp.abs(place - jnp.round(place)) < margin",
        "near = jnp.abs(place - jnp.round(place)) < 0",
        "tests/unit/array/test_edges.py",
    ),
    Mutant(
        "the measured wire of a pipeline that goes on",
        "pipeline/_averaged.py",
        "replicas.go_on_with(pipeline.session.fastest_wire())",
        'common["wire"] = pipeline.session.fastest_wire()',
        "tests/ranks/pipeline/test_measured_wire.py",
    ),
    Mutant(
        "dtypes of a pipeline's parameters on devices",
        "pipeline/_plan/holding.py",
        "np.dtype(canonicalize_dtype(leaf.dtype))",
        "np.dtype(leaf.dtype)",
        "tests/ranks/pipeline/test_given.py",
    ),
    Mutant(
        "a copy of the user's arrays in a pipeline",
        "pipeline/_run/given.py",
        "array.copy() if isinstance(array, np.ndarray) else array",
        "array",
        "tests/ranks/pipeline/test_given.py",
    ),
    Mutant(
        "a failed node whose program does not end",
        "_nodes/exit.py",
        "if _all_have_ended(detectors):",
        "if True:",
        "tests/launches/limits/test_failures.py"
        "::test_a_failed_node_whose_program_never_ends_takes_the_job_with_it",
    ),
    Mutant(
        "a second signal while a launch is ended",
        "_launch/mpiexec.py",
        "signal.signal(number, signal.SIG_IGN) for number in ends",
        "signal.getsignal(number) for number in ends",
        "tests/unit/cli/test_cli.py",
    ),
    Mutant(
        "a session that fails to start names its node",
        "_session/session.py",
        "            if self.control.known.failure is None:\n                say_failed()\n",
        "",
        "tests/launches/recovery/test_recovery.py::test_a_node_that_fails_while_it_makes_its_session_is_named",
    ),
    Mutant(
        "a death after the last session",
        "_launch/failures.py",
        "return self.through and self.ends",
        "return self.through",
        "tests/unit/launch/test_deaths.py",
    ),
    Mutant(
        "failures of an earlier launch of the job",
        "_launch/failures.py",
        "failure.at >= max(self._since, process.since)",
        "failure.at >= 0",
        "tests/unit/launch/test_deaths.py",
    ),
    Mutant(
        "a rank that is accepted without a free file descriptor",
        "_launch/first_failure.py",
        "                    self._refuse()\n",
        "                    pass\n",
        "tests/unit/launch/test_deaths.py",
    ),
    Mutant(
        "probes of hosts end at a signal",
        "_launch/hosts.py",
        "os.killpg(process.pid, signal.SIGKILL)",
        "process.kill()",
        "tests/unit/launch/test_hosts.py",
    ),
    Mutant(
        "a failure between two sessions reaches the next one",
        "_nodes/exit.py",
        "        send_failure(text)",
        "        pass",
        f"{PLAYED}/test_ends_played.py",
    ),
    Mutant(
        "a failed session after which all ranks have met again",
        "_nodes/exit.py",
        "elif session.control.topology.world_rank is None:",
        "elif False:",
        f"{PLAYED}/test_ends_played.py",
    ),
    Mutant(
        "a failed session that a rank closes after all have met again",
        "_nodes/exit.py",
        "each.control.detector.end()",
        "pass",
        f"{PLAYED}/test_ends_played.py",
    ),
    Mutant(
        "a session that fails inside of another",
        "_nodes/exit.py",
        "_open[session] = list(_failed)",
        "_open[session] = _failed",
        f"{PLAYED}/test_ends_played.py",
    ),
    Mutant(
        "the last call of a step",
        "_optimizers/stages.py",
        "last = u.state.step + jnp.max(u.state.ticket)",
        "last = jnp.max(u.state.ticket)",
        "tests/ranks/optimizers/test_step_memory.py",
    ),
    Mutant(
        "second moments of an earlier run, without a warm-up",
        "_optimizers/daso.py",
        "sharing.init(inner_state)",
        "inner_state",
        "tests/unit/optimizers/test_second_moments.py",
    ),
    Mutant(
        "a failed session after which only some ranks have met",
        "_nodes/exit.py",
        "elif session.control.topology.world_rank is None:",
        "else:",
        f"{PLAYED}/test_ends_played.py",
    ),
    Mutant(
        "the last words before a job ends",
        "_nodes/exit.py",
        "        speak_out()\n    abort()",
        "    abort()",
        f"{PLAYED}/test_ends_played.py",
    ),
    Mutant(
        "a failure between sessions, after one that failed",
        "_nodes/exit.py",
        '        if not _state["bereft"]:\n            send_failure(text)',
        "        if not _failed:\n            send_failure(text)",
        f"{PLAYED}/test_ends_played.py",
    ),
    Mutant(
        "a session that goes on after the error of an older state",
        "_engines/versions.py",
        "flight.goes_on = True",
        "flight.goes_on = False",
        "tests/unit/engines/test_versions.py",
    ),
    Mutant(
        "a fit whose error a program catches ends on all nodes",
        "pipeline/_fit.py",
        "            session.fail(summary(error))\n        raise",
        "        raise",
        "tests/launches/pipeline/test_failures.py",
    ),
    Mutant(
        "an error of an earlier step does not stop a pipeline's end",
        "_session/ending.py",
        "except STEP_ERRORS as error:",
        "except ArithmeticError as error:",
        "tests/ranks/pipeline/test_closed.py",
    ),
    Mutant(
        "outside of a compiled step an inner optimizer reads numbers",
        "_optimizers/shared_moments.py",
        "if isinstance(u.state.step, Tracer):",
        "if True:",
        "tests/ranks/optimizers/test_wrappers.py",
    ),
    Mutant(
        "an error of one rank before its session ends the job",
        "_launch/early_failure.py",
        'isinstance(error, NodeError) and _state["meets"]',
        "isinstance(error, NodeError)",
        f"{PLAYED}/test_before_a_session.py",
    ),
    Mutant(
        "a followed checkpoint that its run has removed",
        "checkpoint/_reader.py",
        "if failed or unreadable or not what else",
        "if failed or unreadable else",
        "tests/unit/checkpoint/test_reader.py",
    ),
    Mutant(
        "bytes on the wire of a measured exchange",
        "fabric/_study/alpha_beta.py",
        'factors["bytes"] * on_wire(factors)',
        'factors["bytes"]',
        "tests/unit/fabric/test_study_alpha_beta.py",
    ),
]


def clean() -> bool:
    """Nothing below jdaso/ is changed."""
    command = ["git", "status", "--porcelain", "--", "jdaso"]
    return not subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout


def status_of(witness: str) -> int | None:
    """Returns pytest's exit status for a witness; None if it takes longer than the limit.

    A job of several ranks that a signal or MPI ends has failed, like a test: 1.
    """
    launcher = [str(Path(sys.executable).with_name("mpiexec")), "-n", "3"]
    command = launcher if witness.startswith("tests/ranks/") else []
    command = [*command, sys.executable, "-m", "pytest", "-q", "-x", "-m", "not nightly"]
    command += ["-p", "no:cacheprovider", witness]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    return 1 if launcher == command[: len(launcher)] and done.returncode > 128 else done.returncode


def imported_from() -> Path:
    """Returns the checkout whose package a program of another folder imports."""
    command = [sys.executable, "-c", "import jdaso; print(jdaso.__file__)"]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=True)
    return Path(done.stdout.strip()).parents[1]


@functools.cache
def why_useless(witness: str) -> str | None:
    """Returns the reason why a witness shows nothing; None if it passes while nothing is broken."""
    status = status_of(witness)
    return None if status == 0 else f"{witness} does not pass unbroken: {explained(status)}"


def explained(status: int | None) -> str:
    """Describes a status of `status_of`."""
    if status is None:
        return f"it takes longer than {LIMIT_SECONDS} s"
    return f"pytest's status is {status}"


def judged(mutant: Mutant) -> tuple[str, str]:
    """Returns a mutant's outcome with the reason for it: red, GREEN, or ERROR for its witness."""
    path = ROOT / "jdaso" / mutant.file
    text = path.read_text()
    if text.count(mutant.old) != 1:
        times = text.count(mutant.old)
        return "GREEN", f"jdaso/{mutant.file} holds its place {times} times, not once"
    witnesses = mutant.witnesses.split()
    if useless := [why for witness in witnesses if (why := why_useless(witness))]:
        return "ERROR", "; ".join(useless)
    found = []
    try:
        path.write_text(text.replace(mutant.old, mutant.new))
        for witness in witnesses:
            status = status_of(witness)
            if status == 1:
                return "red", ""
            found.append(f"{witness}: {explained(status)}")
    finally:
        path.write_text(text)
    return "GREEN", f"no witness fails ({'; '.join(found)})"


def main(words: list[str]) -> int:
    """Runs the mutants; 0 where all are found."""
    if not clean():
        print("jdaso/ has changes that are not committed: mutants would be lost in them.")
        return 2
    if (found := imported_from()) != ROOT:
        print(f"Programs import jdaso from {found}, not from {ROOT}: run `make setup` here.")
        return 2
    chosen = [m for m in MUTANTS if not words or any(word in m.mechanism for word in words)]
    alive = 0
    for mutant in chosen:
        begin = time.monotonic()
        outcome, why = judged(mutant)
        alive += outcome != "red"
        took = f"{time.monotonic() - begin:5.1f} s"
        print(f"{took}  {outcome:5}  {mutant.mechanism}", flush=True)
        if why:
            print(f"         {why}", flush=True)
    print(f"{len(chosen) - alive} of {len(chosen)} mutants found")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
