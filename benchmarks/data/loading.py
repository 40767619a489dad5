"""A file of four times the memory limit: memory stays flat, and the step loop loses little.

    python benchmarks/data/loading.py [--quick] [--limit MB] [--step-ms MS] [--folder FOLDER]

For each kind of file a process sets its limit (``RLIMIT_DATA``: all that it may allocate, threads'
stacks included) and trains over the file once, with a step that takes a given time (`--step-ms`; as
on an accelerator, no core is used) and then with one that the processor computes. In rounds of
20 steps the batches come from `jdaso.data.Loader` or are one that is on the device already, in
turns. Lost is the median over pairs of neighbouring rounds of how much longer the loader's took.
Resident memory is read after each round; its slope is that of a line through the last three
quarters of them, in MB for each GB read.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.lib import harness

KINDS = ("npy", "HDF5, contiguous", "HDF5, chunks", "HDF5, gzip")
COMPUTES = ("paced", "real")
ROW_BYTES = 3 * 64 * 64
BATCH, ROUND = 256, 20
MARK = 0.03


def status_megabytes(name: str) -> float:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name)) * 1024 / 1e6


def write(path: Path, kind: str, rows: int) -> None:
    """Random images, which pack to about a half."""
    import h5py

    random = np.random.default_rng(0)
    pieces = [min(4096, rows - k) for k in range(0, rows, 4096)]

    def piece(n):
        return random.integers(0, 16, (n, ROW_BYTES), np.uint8)

    if kind == "npy":
        array = np.lib.format.open_memmap(path, "w+", np.uint8, (rows, ROW_BYTES))
        for k, n in enumerate(pieces):
            array[k * 4096 : k * 4096 + n] = piece(n)
        array.flush()
        return
    settings = {} if kind.endswith("contiguous") else {"chunks": (64, ROW_BYTES)}
    settings |= {"compression": 1} if kind.endswith("gzip") else {}
    with h5py.File(path, "w") as file:
        array = file.create_dataset("x", (rows, ROW_BYTES), np.uint8, **settings)
        for k, n in enumerate(pieces):
            array[k * 4096 : k * 4096 + n] = piece(n)


def train(path: str, kind: str, compute: str, step_ms: float, limit: int) -> None:
    """One process: prints what it measured as JSON."""
    import jax
    import jax.numpy as jnp

    import jdaso
    from jdaso.data import HDF5, Loader, Npy

    resource.setrlimit(resource.RLIMIT_DATA, (limit * 1_000_000, limit * 1_000_000))
    source = Npy(path) if kind == "npy" else HDF5(path, "x")
    block = 64 if kind.endswith("gzip") else 1
    weights = jnp.full((ROW_BYTES, 256), 1e-3, jnp.bfloat16 if compute == "paced" else jnp.float32)

    @jax.jit
    def real(batch):
        return (jnp.tanh(batch.astype(jnp.float32) @ weights).sum(), batch[:1])[0]

    def paced(batch):
        time.sleep(step_ms / 1000)
        return batch

    step = real if compute == "real" else paced
    with jdaso.Session() as session:
        loader = Loader(source, BATCH, session, epochs=1, shuffle_block=block)
        held = next(loader)
        jax.block_until_ready(step(held))
        used, seconds = [], {"held": [], "loaded": []}
        for _ in range((len(loader) - 1) // ROUND):
            for name, of_round in seconds.items():
                begin = time.perf_counter()
                for _ in range(ROUND):
                    jax.block_until_ready(step(next(loader) if name == "loaded" else held))
                of_round.append(time.perf_counter() - begin)
            used.append(status_megabytes("VmRSS"))
        gigabytes = ROUND * BATCH * ROW_BYTES / 2**30
        late = len(used) // 4
        read = [k * gigabytes for k in range(len(used) - late)]
        slope = statistics.linear_regression(read, used[late:]).slope  # LAPACK wants memory
        ratios = np.array(seconds["loaded"]) / np.array(seconds["held"])
        said = {
            "step_ms": 1000 * float(np.median(seconds["held"])) / ROUND,
            "lost": float(np.median(ratios)) - 1,
            "rounds": len(ratios),
            "waited_ms": 1000 * loader.waited_seconds / (len(ratios) * ROUND),
            "slope": slope,
            "used": [round(x) for x in (used[late], used[-1])],
            "peak": round(status_megabytes("VmHWM")),
        }
    print(json.dumps(said))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="256 MB, not above the limit: does it run?"
    )
    parser.add_argument("--folder", default=None, help="where the files are written")
    parser.add_argument("--limit", type=int, default=512, help="MB that the process may allocate")
    parser.add_argument("--step-ms", type=float, default=50.0, help="of the paced step")
    parser.add_argument("--steps", nargs="+", choices=COMPUTES, default=COMPUTES, help="which")
    parser.add_argument("--train", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train:
        train(*given.train, given.step_ms, given.limit)
        return 0
    megabytes, kinds, computes = 4 * given.limit, KINDS, given.steps
    if given.quick:
        megabytes, kinds, computes = 256, ("npy", "HDF5, chunks"), ["paced"]
    rows, found = megabytes * 1_000_000 // ROW_BYTES, []
    for kind in kinds:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            path = Path(folder) / "data"
            write(path, kind, rows)
            for compute in computes:
                command = [sys.executable, __file__, "--train", str(path), kind, compute]
                command += ["--step-ms", str(given.step_ms), "--limit", str(given.limit)]
                done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
                if done.returncode:
                    print(done.stderr)
                    return 1
                said = json.loads(done.stdout.splitlines()[-1])
                found.append({"file": kind, "step": compute, **said})
    settings = {"file MB": megabytes, "limit MB": given.limit, "row bytes": ROW_BYTES}
    harness.report("loading", found, **settings)
    judged = [] if given.quick else [row for row in found if row["step"] == "paced"]
    return 0 if all(row["lost"] < MARK for row in judged) else 1


if __name__ == "__main__":
    sys.exit(main())
