"""The part of ``simulate`` about pipelines."""

from __future__ import annotations

import argparse
import dataclasses

from ..fabric import Fabric, Hybrid, Training, predict, predict_hybrid, predict_synchronous
from ..pipeline import SCHEDULES, make_schedule

_ALONE = {
    "replicas": None,
    "microbatches": None,
    "schedule": "1f1b",
    "chunks": None,
    "activation_mb": 100.0,
    "balance": 1.0,
    "partitions_per_node": 1,
}
"""Options that mean nothing without pipelines, and their values where none is given."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of pipelines."""
    number = parser.add_argument_group(
        "pipelines", "the model cut into K partitions; a step has as many samples as without"
    ).add_argument
    number("--partitions", type=int, default=1, help="K; nodes / K replicas (default 1: none)")
    number("--replicas", type=int, help="R, checked against the number of nodes")
    number("--microbatches", type=int, help="M (default 4 K)")
    number("--schedule", choices=SCHEDULES, help="(default 1f1b)")
    number("--chunks", type=int, help="V, stages per rank (default 1; 2 if interleaved)")
    cut = "MB over each cut for a whole batch of a node, --batch times --devices (default 100)"
    number("--activation-mb", type=float, help=cut)
    number("--balance", type=float, help="largest stage over the mean (default 1)")
    number("--partitions-per-node", type=int, help="partitions on one node (default 1)")
    number("--draw", metavar="FILE", help="draw the pipeline's schedule; PNG or SVG")
    parser.set_defaults(**_ALONE)


def refuse_unused(arguments: argparse.Namespace) -> None:
    """Raises if an option describes pipelines and there are none.

    Raises:
        ValueError: there is such an option.
    """
    for name, default in _ALONE.items():
        if getattr(arguments, name) != default:
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{option} describes pipelines: give --partitions, too.")


def described(
    arguments: argparse.Namespace, fabric: Fabric, training: Training, samples_a_node: int
) -> Hybrid:
    """Returns the pipelines that the options describe, averaged by daso.

    A replica takes the samples of all its nodes, in M micro-batches, so that a step has as many
    samples as one of data parallelism.

    Raises:
        ValueError: a number is out of range, or the nodes cannot be divided so.
    """
    partitions, each = arguments.partitions, arguments.partitions_per_node
    if partitions < 1 or each < 1 or partitions % each:
        raise ValueError(
            "--partitions must be at least 1 and a multiple of --partitions-per-node, got "
            f"{partitions} and {each}."
        )
    nodes = partitions // each
    replicas = fabric.nodes // nodes if arguments.replicas is None else arguments.replicas
    if nodes * replicas != fabric.nodes:
        raise ValueError(
            f"A pipeline of {partitions} partitions takes {nodes} nodes; {replicas} of them do not "
            f"make {fabric.nodes} nodes. Change --nodes, --partitions or --replicas."
        )
    if not arguments.activation_mb >= 0:
        raise ValueError(f"--activation-mb must be 0 or more, got {arguments.activation_mb}.")
    microbatches = 4 * partitions if arguments.microbatches is None else arguments.microbatches
    interleaved = arguments.schedule == "interleaved"
    chunks = (2 if interleaved else 1) if arguments.chunks is None else arguments.chunks
    schedule = make_schedule(arguments.schedule, partitions, microbatches, chunks)
    return Hybrid.even(
        schedule.order,
        step_seconds=nodes * training.step_seconds,
        activation_bytes=nodes * arguments.activation_mb * 1e6 / microbatches,
        parameters=training.parameters,
        balance=arguments.balance,
        samples=nodes * samples_a_node,
        replicas=replicas,
        partitions_per_node=each,
        sync_every=training.sync_every,
        delay=training.delay,
        wire=training.wire,
        chunk_bytes=training.chunk_bytes,
        fragments=training.fragments,
    )


def rows(fabric: Fabric, hybrid: Hybrid, backward: float) -> list[dict]:
    """Returns rows for both kinds of averages, for pipelines and for data parallelism."""
    synchronous = dataclasses.replace(hybrid, averaging="synchronous")
    found = [
        _row("hybrid, daso", predict_hybrid(fabric, hybrid, behind_backward=backward)),
        _row("hybrid, synchronous", predict_hybrid(fabric, synchronous, behind_backward=backward)),
    ]
    whole = hybrid.training(sum(hybrid.parameters), hybrid.work_seconds / hybrid.partitions)
    waits = predict_synchronous(fabric, whole, behind_backward=backward)
    samples = hybrid.samples * hybrid.replicas
    for name, data in (("data, daso", predict(fabric, whole)), ("data, synchronous", waits)):
        found.append(
            {
                "method": name,
                "step ms": data.step_seconds * 1e3,
                "bubble": 0.0,
                "activations ms": 0.0,
                "averages ms": (data.step_seconds - data.bare_seconds) * 1e3,
                "MB a step": data.bytes_per_step / 1e6,
                "samples/s": samples / data.step_seconds,
                "of one node": fabric.nodes * data.bare_seconds / data.step_seconds,
                "of data parallel": waits.step_seconds / data.step_seconds,
            }
        )
    return found


def _row(name: str, found) -> dict:
    return {
        "method": name,
        "step ms": found.step_seconds * 1e3,
        "bubble": found.bubble_share,
        "activations ms": found.activations_seconds * 1e3,
        "averages ms": found.averaging_seconds * 1e3,
        "MB a step": found.bytes_per_step / 1e6,
        "samples/s": found.samples_per_second,
        "of one node": found.one_node,
        "of data parallel": found.data_parallel,
    }


def title(hybrid: Hybrid, schedule: str) -> str:
    """Returns a line for the table."""
    if not hybrid.traffic:
        return f"{hybrid.replicas} replicas of one partition"
    return (
        f"{hybrid.replicas} pipelines of {hybrid.partitions} partitions, "
        f"{len(hybrid.forward_seconds)} stages, {schedule}, {hybrid.microbatches} micro-batches; "
        f"{hybrid.traffic[0][2] / 1e6:g} MB over a cut for each"
    )
