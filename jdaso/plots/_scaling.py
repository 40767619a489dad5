"""Plots of the speed against the number of nodes, by the model of `jdaso.fabric`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ..fabric import Fabric, Training, predict, predict_synchronous


def plot_scaling(
    fabric: Fabric,
    training: Training,
    path: str | Path,
    *,
    most_nodes: int = 4096,
    behind_backward: float = 0.0,
) -> None:
    """Draws speed relative to no network against nodes, for `daso` and synchronous training.

    Args:
        fabric: the cluster; its number of nodes is varied.
        training: the training.
        path: the file to write; its ending gives the format (.png, .svg, .pdf).
        most_nodes: the largest number of nodes.
        behind_backward: share of a step that can hide a synchronous average.

    Raises:
        ImportError: matplotlib is missing.
        ValueError: matplotlib does not support the ending.
    """
    from matplotlib.figure import Figure

    nodes = [2**k for k in range(most_nodes.bit_length()) if 2 <= 2**k <= most_nodes]
    curves = {"daso": [], "synchronous": []}
    for count in nodes:
        cluster = dataclasses.replace(fabric, nodes=count)
        waits = predict_synchronous(cluster, training, behind_backward=behind_backward)
        for name, found in (("daso", predict(cluster, training)), ("synchronous", waits)):
            curves[name].append(found.bare_seconds / found.step_seconds)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for (name, speed), style in zip(curves.items(), ("o-", "s--"), strict=True):
        axes.plot(nodes, speed, style, label=name)
    axes.set_xscale("log", base=2)
    axes.set_ylim(0, 1.05)
    axes.set_xlabel("nodes")
    axes.set_ylabel("speed, 1 = no network")
    axes.set_title(
        f"{training.parameters / 1e6:g} M parameters, {1e3 * training.step_seconds:g} ms a step, "
        f"{fabric.bits_per_second / 1e9:g} Gbit/s; {training.wire}, B = {training.sync_every}, "
        f"S = {training.delay}",
        fontsize="medium",
    )
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
