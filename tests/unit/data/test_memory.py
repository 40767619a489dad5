"""A file four times as large as what the process may still allocate: memory stays flat."""

import json
import subprocess
import sys

import h5py
import numpy as np
import pytest

MEGABYTES = 48
"""The most that may be allocated; the file is four times as large."""

CODE = """
import json, resource, sys
import jax, jax.numpy as jnp
import jdaso
from jdaso.data import HDF5, Loader, Npy

def status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name)) / 1024

path, megabytes = sys.argv[1], int(sys.argv[2])
with jdaso.Session() as session:
    loader = Loader(Npy(path) if path.endswith("npy") else HDF5(path, "x"), 32, session, epochs=1)
    step = jax.jit(lambda total, batch: total + batch.astype(jnp.uint32).sum())
    total, used = jnp.uint32(0), []
    for number, batch in enumerate(loader):
        total = jax.block_until_ready(step(total, batch))  # else 32 steps have batches
        if number == 2:
            limit = int((status("VmData") + megabytes) * 2**20)
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        if number in (len(loader) // 4, len(loader) // 2, len(loader) - 1):
            used.append(status("VmRSS"))
    try:  # the limit is one
        whole = bytearray(megabytes * 4 * 2**20)
    except MemoryError:
        print(json.dumps({"total": int(total), "used": used}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", ["npy", "h5"])
def test_memory_is_flat(tmp_path, kind):
    samples = MEGABYTES * 4 * 2**20 // 2**15
    array = np.random.default_rng(0).integers(0, 255, (samples, 2**15), np.uint8)
    array[:, 2**12 :] = 3  # packs well
    path = tmp_path / f"x.{kind}"
    if kind == "npy":
        np.save(path, array)
    else:
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=array, chunks=(4, 2**15), compression=1)
    run = dict(capture_output=True, text=True, timeout=120)
    done = subprocess.run([sys.executable, "-c", CODE, path, str(MEGABYTES)], **run)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["total"] == array.sum(dtype=np.uint32)
    early, *later = said["used"]
    assert max(later) - early < MEGABYTES / 4, said
