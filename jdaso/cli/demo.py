"""``python -m jdaso demo``: DASO against synchronous training, on this machine, in minutes.

This process finds the images, starts the ranks with ``mpiexec`` and shows node 0's reports. The
program of the ranks is `_demo_node`.
"""

import argparse
import importlib.util
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from .._launch.mpiexec import LaunchError, mpi_command, run_ranks
from .._launch.paths import local_folder
from ._fashion_mnist import ImageData, fashion_mnist

NEEDED = ("flax", "rich", "mpi4py")
MISTAKE = 2
"""Exit status of a mistake in the arguments."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``demo``."""
    number = parser.add_argument
    number("--data", metavar="DIR", help="folder with the four IDX files of Fashion-MNIST")
    number("--epochs", type=int, default=5, help="passes over the training images (default 5)")
    number("--nodes", type=int, default=2, help="MPI ranks to start (default 2)")
    number("--devices", type=int, default=2, help="CPU devices of each node (default 2)")
    number("--batch", type=int, default=64, help="images per device and step (default 64)")
    number("--sync-every", type=int, default=4, help="B, steps between exchanges (default 4)")
    number("--delay", type=int, default=2, help="S, steps from start to merge (default 2)")
    number("--engine", choices=["mpi4py", "mpi4jax"], default="mpi4py", help="default mpi4py")
    number("--limit", type=int, metavar="N", help="use only N training and N test images")
    record = "write each method's metrics to a folder in this one, for python -m jdaso report"
    number("--record", metavar="DIR", help=record)
    number("--json", metavar="FILE", help="write settings and results to this file")
    number("--timeout-seconds", type=float, default=900.0, help="give up after this (default 900)")


def run(arguments: argparse.Namespace) -> int:
    """Runs the demo; returns 0 if both methods trained and all nodes ended alike, else 1 or 2."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return _fail(
            f"The demo needs {', '.join(missing)}. Install them: pip install 'jdaso[train]'"
        )
    for name in ("epochs", "nodes", "devices", "batch", "sync_every", "delay", "limit"):
        if (given := getattr(arguments, name)) is not None and given < 1:
            option = name.replace("_", "-")
            return _fail(f"--{option} must be at least 1, got {given}.", status=MISTAKE)
    if arguments.delay > arguments.sync_every:
        return _fail(
            f"--delay must be at most --sync-every, got {arguments.delay} and "
            f"{arguments.sync_every}.",
            status=MISTAKE,
        )
    try:
        try:
            if arguments.record is not None:
                arguments.record = str(local_folder(arguments.record))
            data = fashion_mnist(arguments.data)
        except (OSError, ValueError) as error:
            return _fail(str(error), status=MISTAKE)
        return _demo(arguments, data)
    except KeyboardInterrupt:
        return _fail("Interrupted; all ranks were ended.", status=130)
    except (LaunchError, OSError, ValueError, ImportError) as error:
        return _fail(str(error))


def _demo(arguments: argparse.Namespace, data: ImageData) -> int:
    from rich.console import Console

    from ._demo_display import DemoDisplay, result_table

    console, began = Console(), time.perf_counter()
    if arguments.limit is not None:
        data = data._replace(
            train_images=data.train_images[: arguments.limit],
            train_labels=data.train_labels[: arguments.limit],
            test_images=data.test_images[: arguments.limit],
            test_labels=data.test_labels[: arguments.limit],
            source=f"{data.source}; the first {arguments.limit} of each are used",
        )
    results: list[dict] = []
    # Images and settings are passed in files: each rank's own search could give different ones.
    with (
        tempfile.TemporaryDirectory(prefix="jdaso-demo-") as folder,
        DemoDisplay(console) as display,
    ):
        display.note(f"Images: {data.source}")
        display.note(
            f"Nodes: {arguments.nodes}, each with {arguments.devices} CPU devices; "
            f"engine {arguments.engine}"
        )
        np.savez(Path(folder, "data.npz"), **data._asdict())
        settings = {
            name: getattr(arguments, name)
            for name in ("epochs", "devices", "engine", "batch", "sync_every", "delay")
        } | {"data": str(Path(folder, "data.npz")), "num_nodes": arguments.nodes}
        settings["record"] = arguments.record
        Path(folder, "settings.json").write_text(json.dumps(settings))

        def on_line(line: str) -> None:
            if not line.startswith("@jdaso-demo "):
                return display.note(line)
            report = json.loads(line.removeprefix("@jdaso-demo "))
            if report.pop("event") == "progress":
                return display.show(report)
            results.append(report)
            display.finish(report)

        command, environment = mpi_command(
            arguments.nodes,
            [sys.executable, "-m", "jdaso.cli._demo_node", str(Path(folder, "settings.json"))],
            _environment(arguments.devices),
        )
        run_ranks(command, environment, timeout_seconds=arguments.timeout_seconds, on_line=on_line)
    console.print(result_table(results))
    total = time.perf_counter() - began
    console.print(
        f"{results[0]['parameters']:,} parameters, {results[0]['steps']} steps with each method; "
        f"{total:.0f} s in all, loading and compiling included.",
        highlight=False,
    )
    if arguments.json:
        machine = {"machine": platform.platform(), "cores": os.cpu_count()}
        document = machine | {"images": data.source, "settings": settings, "results": results}
        Path(arguments.json).write_text(json.dumps(document, indent=2) + "\n")
    if not all(result["nodes_equal"] for result in results):
        return _fail("The nodes ended with different parameters. This is a bug in jdaso.")
    return 0


def _environment(devices: int) -> dict[str, str]:
    count = f"--xla_force_host_platform_device_count={devices}"  # the last one given counts
    flags = f"{os.environ.get('XLA_FLAGS', '')} {count}".strip()
    return os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}


def _fail(text: str, status: int = 1) -> int:
    print(f"jdaso demo: {text}", file=sys.stderr)
    return status
