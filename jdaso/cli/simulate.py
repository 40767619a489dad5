"""``python -m jdaso simulate``: predicts a step on a cluster that the options describe."""

import argparse
import contextlib
import dataclasses
import json
import math
import sys
from collections.abc import Iterator

from ..fabric import Fabric, Hybrid, Prediction, Training, advise, predict, predict_synchronous
from ..fabric._emulate.cluster import any_bits_per_second_of
from . import _hybrid, _measured
from ._writing import writing

# Typical values, not measured. A node of JUWELS Booster has four links of 200 Gbit/s.
PRESETS = {
    "lab-1g": {"rate": "1gbit", "latency_us": 50.0, "devices": 1},
    "lab-10g": {"rate": "10gbit", "latency_us": 30.0, "devices": 4},
    "cloud-25g": {"rate": "25gbit", "latency_us": 30.0, "devices": 8},
    "cloud-400g": {"rate": "400gbit", "latency_us": 15.0, "devices": 8},
    "juwels-booster": {"rate": "800gbit", "latency_us": 2.0, "devices": 4},
}
UP_TO = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``simulate``."""
    number = parser.add_argument
    number("--preset", choices=sorted(PRESETS), help="a known kind of cluster")
    number("--nodes", type=int, default=8, help="P (default 8)")
    number("--devices", type=int, help="accelerators per node (default 4)")
    number("--rate", help="rate of a node's link, each way (default 10gbit)")
    number("--latency-us", type=float, help="latency of a message, in microseconds (default 20)")
    _measured.add_arguments(parser)
    number("--jitter-ms", type=float, default=0.0, help="standard deviation of a step (default 0)")
    host = "GB/s at which a host copies memory: steps run on its CPUs, not on accelerators"
    number("--copy-gbytes", type=float, help=host)
    number("--parameters", type=float, default=25.6e6, help="(default 25.6e6, ResNet-50)")
    number("--step-ms", type=float, default=200.0, help="a step without network (default 200)")
    number("--sync-every", type=int, default=4, help="B (default 4); --advise chooses its own")
    number("--delay", type=int, help="S (default B)")
    number("--fragments", default="auto", help="F, which divides B (default auto)")
    number("--wire", default="bfloat16", help="float32, bfloat16, int8 or int4")
    number("--samples", type=int, default=1_281_167, help="samples per epoch (default ImageNet's)")
    number("--batch", type=int, default=256, help="samples per device and step (default 256)")
    backward = (
        "share of the step that can hide a synchronous method's averages; at most the "
        "backward pass, 0.66 (default 0)"
    )
    number("--backward", type=float, default=0.0, help=backward)
    number("--advise", action="store_true", help="find B, S and wire that hide all exchanges")
    number("--exchange-ms", type=float, help="measured time of an exchange on --wire")
    plot = f"speed relative to no network against nodes, to {UP_TO}; PNG or SVG"
    number("--plot", metavar="FILE", help=plot)
    number("--json", action="store_true", help="for scripts")
    _hybrid.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the predictions; returns 0, 1 if a library is missing, or 2 for invalid arguments."""
    try:
        if arguments.exchange_ms is not None and not arguments.advise:
            raise ValueError("--exchange-ms is used by --advise only: give --advise, too.")
        fabric, training, devices = described(arguments)
        hybrid = None
        if arguments.partitions != 1 or arguments.draw:
            samples = arguments.batch * devices
            hybrid = _hybrid.described(arguments, fabric, training, samples)
        else:
            _hybrid.refuse_unused(arguments)
        _predict(arguments, fabric, training, devices, hybrid)
        if arguments.plot:
            _plot(fabric, training, arguments.plot, arguments.backward)
        if arguments.draw and hybrid:
            _draw(fabric, hybrid, arguments.draw)
    except (ImportError, OSError, ValueError) as error:
        print(f"jdaso simulate: {error}", file=sys.stderr)
        return 1 if isinstance(error, ImportError) else 2
    return 0


def _predict(
    arguments: argparse.Namespace,
    fabric: Fabric,
    training: Training,
    devices: int,
    hybrid: Hybrid | None,
) -> None:
    samples = arguments.batch * devices * fabric.nodes
    steps = max(1, arguments.samples // samples)
    waits = predict_synchronous(fabric, training, behind_backward=arguments.backward)
    bare = predict(dataclasses.replace(fabric, nodes=1), training)
    rows = [
        _row("daso", predict(fabric, training), training, steps),
        _row("synchronous", waits, None, steps),
        _row("no network", bare, None, steps),
    ]
    if arguments.advise:
        measured = None if arguments.exchange_ms is None else arguments.exchange_ms / 1e3
        least = 1 if isinstance(training.fragments, str) else training.fragments
        about = {"least_steps": least, "exchange_seconds_measured": measured}
        found = advise(fabric, training, **about)
        rows += [_row("advised", a.prediction, a.training, steps) for a in found]
    pipelines = _hybrid.rows(fabric, hybrid, arguments.backward) if hybrid else []
    if arguments.json:
        found = {"fabric": dataclasses.asdict(fabric), "rows": rows, "pipelines": pipelines}
        print(json.dumps(found))
        return
    _print(fabric, training)
    _print_table(rows)
    if arguments.advise:
        print(_advice(rows, arguments.fragments))
    if hybrid:
        print(f"\n{_hybrid.title(hybrid, arguments.schedule)}")
        _print_table(pipelines)


def _plot(fabric: Fabric, training: Training, path: str, backward: float) -> None:
    with _writing("--plot", path):
        from ..plots import plot_scaling

        plot_scaling(fabric, training, path, most_nodes=UP_TO, behind_backward=backward)


def _draw(fabric: Fabric, hybrid: Hybrid, path: str) -> None:
    with _writing("--draw", path):
        from ..plots import draw_schedule

        draw_schedule(
            hybrid.order,
            (hybrid.forward_seconds, hybrid.backward_seconds),
            path,
            traffic=hybrid.traffic,
            fabric=fabric,
            partitions_per_node=hybrid.partitions_per_node,
        )


@contextlib.contextmanager
def _writing(option: str, path: str) -> Iterator[None]:
    """Reports an error, or that a picture was written."""
    try:
        with writing(option, path):
            yield
    except ImportError as error:
        raise ImportError(
            f'{option} needs matplotlib ({error}): pip install "jdaso[plots]".'
        ) from error
    print(f"plotted: {path}", file=sys.stderr)


def described(arguments: argparse.Namespace) -> tuple[Fabric, Training, int]:
    """Returns the cluster, the training, and the devices per node.

    Options override the link that a study measured, which overrides a preset.
    """
    known = {
        "rate": "10gbit",
        "latency_us": 20.0,
        "devices": 4,
        **PRESETS.get(arguments.preset, {}),
        **_measured.link(arguments),
    }
    given = {key: getattr(arguments, key) for key in known}
    chosen = {key: known[key] if given[key] is None else given[key] for key in known}
    for name, value in (
        ("--devices", chosen["devices"]),
        ("--batch", arguments.batch),
        ("--samples", arguments.samples),
    ):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")
    if not 1 <= arguments.parameters < math.inf:
        given = arguments.parameters
        raise ValueError(f"--parameters must be a number of at least 1, got {given}.")
    host = {}
    if arguments.copy_gbytes is not None:
        host = {"copy_bytes_per_second": arguments.copy_gbytes * 1e9, "accelerators": False}
    fabric = Fabric(
        nodes=arguments.nodes,
        bits_per_second=any_bits_per_second_of(chosen["rate"]),
        latency_seconds=chosen["latency_us"] * 1e-6,
        jitter_seconds=arguments.jitter_ms / 1e3,
        **host,
    )
    training = Training(
        parameters=int(arguments.parameters),
        step_seconds=arguments.step_ms / 1e3,
        sync_every=arguments.sync_every,
        delay=arguments.sync_every if arguments.delay is None else arguments.delay,
        wire=arguments.wire,
        fragments=_fragments(arguments.fragments),
    )
    return fabric, training, chosen["devices"]


def _fragments(text: str) -> int | str:
    """Returns F as a number, if it is one."""
    return int(text) if text.isdigit() else text


def _row(name: str, found: Prediction, training: Training | None, steps: int) -> dict:
    return {
        "method": name,
        "wire": training.wire if training else "",
        "B": training.sync_every if training else "",
        "S": training.delay if training else "",
        "F": found.fragments if training else "",
        "step ms": found.step_seconds * 1e3,
        "of no network": found.bare_seconds / found.step_seconds,
        "exchange ms": found.exchange_seconds * 1e3,
        "hidden": found.hidden_share,
        "MB a step": found.bytes_per_step / 1e6,
        "epoch s": steps * found.step_seconds,
    }


def _print(fabric: Fabric, training: Training) -> None:
    print(
        f"{fabric.nodes} nodes, links of {fabric.bits_per_second / 1e9:g} Gbit/s "
        f"({fabric.efficiency:.0%} of it numbers), {fabric.latency_seconds * 1e6:g} us a message; "
        f"{training.parameters / 1e6:g} M parameters"
    )


def _print_table(rows: list[dict]) -> None:
    columns = list(rows[0])
    cells = [columns] + [[_text(row[key]) for key in columns] for row in rows]
    widths = [max(len(line[k]) for line in cells) for k in range(len(columns))]
    for line in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


def _text(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _advice(rows: list[dict], fragments: str) -> str:
    best = next((row for row in rows if row["method"] == "advised"), None)
    if best is None:
        return (
            "No wire can be hidden behind 64 steps: the link is too slow for this step. Make the "
            "step longer (a larger batch, accumulation) or take fewer, larger nodes."
        )
    given = "" if fragments == "auto" else f", fragments={best['F']}"
    return (
        f'Advice: wire="{best["wire"]}", sync_every={best["B"]}, delay={best["S"]}{given}: '
        f"{best['of no network']:.0%} of the speed without a network."
    )
