"""One system's part of `arrays.py`: makes its data, and computes on request.

    python _arrays.py SYSTEM ROWS RANKS FOLDER TASK ...

Each rank waits for a file ``go-K`` in FOLDER, computes task K mod the number of tasks, and writes
its seconds to ``SYSTEM-K-RANK``. Ranks sleep while another system computes.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

COLUMNS, CLUSTERS, ITERATIONS, BINS, PENALTY = 8, 8, 10, 64, 0.1


def side(rows: int) -> int:
    """The side of a square matrix, whose product takes about as long as the other tasks."""
    return int(rows ** (1 / 2)) // 8 * 8


def centers() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(CLUSTERS, COLUMNS)).astype(np.float32)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def jdaso(rows: int, ranks: int) -> tuple[int, dict[str, Callable[[], Any]]]:
    import jdaso

    return jdaso.Session().node, tasks_of_jdaso(rows)


def tasks_of_jdaso(rows: int) -> dict[str, Callable[[], Any]]:
    """The tasks, on the nodes of the open session."""
    import jax

    import jdaso.array as ja

    x, m = numbers(rows, COLUMNS), numbers(side(rows), side(rows))
    x, m, line, few = (ja.asarray(one, split=0) for one in (x, m, x[:, 0], x[: 2 * side(rows)]))
    done = jax.block_until_ready

    def clusters(compiled: bool) -> Any:
        about = {"init": centers(), "max_iter": ITERATIONS, "tol": -1.0, "compiled": compiled}
        return done(ja.cluster.KMeans(CLUSTERS, **about).fit(x).labels_)

    lasso = ja.linear_model.Lasso(PENALTY, max_iter=ITERATIONS, tol=1e-6)
    return {
        "mean and std": lambda: done((ja.mean(x, axis=0), ja.std(x, axis=0))),
        "histogram": lambda: done(ja.histogram(line, bins=BINS)),
        "k-means": lambda: clusters(compiled=False),
        "k-means, compiled": lambda: clusters(compiled=True),
        "sort": lambda: done(ja.sort(line)),
        "matmul": lambda: done(m @ m),
        "resplit": lambda: done(x.resplit(1)),
        "cdist": lambda: done(ja.cdist(few)),
        "LASSO": lambda: lasso.fit(x, line).coef_,
    }


def heat(rows: int, ranks: int) -> tuple[int, dict[str, Callable[[], Any]]]:
    import heat as ht
    import torch

    torch.set_num_threads(1)
    x, m = numbers(rows, COLUMNS), numbers(side(rows), side(rows))
    few = x[: 2 * side(rows)]
    x, m, line, few = (ht.array(one, split=0) for one in (x, m, x[:, 0].copy(), few))
    first = ht.array(centers())

    def clusters() -> Any:
        kmeans = ht.cluster.KMeans(CLUSTERS, init=first, max_iter=ITERATIONS, tol=-1.0)
        return kmeans.fit(x).labels_

    return ht.MPI_WORLD.rank, {
        "mean and std": lambda: (ht.mean(x, 0), ht.std(x, 0)),
        "histogram": lambda: ht.histogram(line, bins=BINS),
        "k-means": clusters,
        "sort": lambda: ht.sort(line),
        "matmul": lambda: m @ m,
        "resplit": lambda: ht.resplit(x, 1),
        "cdist": lambda: ht.spatial.cdist(few),
        "LASSO": lambda: ht.regression.Lasso(PENALTY, ITERATIONS, None).fit(x, line),
    }


def dask(rows: int, ranks: int) -> tuple[int, dict[str, Callable[[], Any]]]:
    import dask.array as da
    from distributed import Client, LocalCluster, wait

    cluster = LocalCluster(n_workers=ranks, threads_per_worker=1, dashboard_address=None)
    client = Client(cluster)
    size = side(rows)
    x = da.from_array(numbers(rows, COLUMNS), chunks=(-(-rows // ranks), COLUMNS))
    m = da.from_array(numbers(size, size), chunks=(-(-size // ranks), size))
    x, m = client.persist([x, m])
    wait([x, m])

    def histogram() -> Any:
        ends = client.compute([x[:, 0].min(), x[:, 0].max()], sync=True)
        return client.compute(da.histogram(x[:, 0], BINS, range=ends)[0], sync=True)

    def lies(array: Any) -> Any:
        return wait(client.persist(array))

    return 0, {
        "mean and std": lambda: client.compute([x.mean(0), x.std(0)], sync=True),
        "histogram": histogram,
        "matmul": lambda: lies(m @ m),
        "resplit": lambda: lies(x.rechunk((rows, -(-COLUMNS // ranks)))),
    }


def main() -> None:
    system, rows, ranks, folder, *tasks = sys.argv[1:]
    rank, all_tasks = {"jdaso": jdaso, "heat": heat, "dask": dask}[system](int(rows), int(ranks))
    for k, task in enumerate(tasks):
        go = Path(folder) / f"go-{system}-{k}"
        while not go.exists():
            time.sleep(2e-4)
        seconds = [0.0]
        if function := all_tasks.get(task):
            begin, seconds = time.perf_counter(), []
            times = int(go.read_text() or "1")
            for _ in range(times):
                function()
            seconds = [(time.perf_counter() - begin) / times]
        done = Path(folder) / f"{system}-{k}-{rank}"
        done.with_suffix(".part").write_text(repr(seconds[0]))
        os.replace(done.with_suffix(".part"), done)


if __name__ == "__main__":
    main()
