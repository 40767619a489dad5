"""Nodes that make mistakes with arrays: ``python arrays_faulty.py FOLDER CASE ...``.

Prints ``NODE CASE SECONDS ERROR TEXT`` for each error, ``NODE CASE fine`` where there was none.
After "left_out", "killed", "raised" or "memory" nothing goes on.
"""

import os
import resource
import signal
import sys
import time
from pathlib import Path

import h5py
import jax.numpy as jnp
import numpy as np

import jdaso
import jdaso.array as ja

FOLDER, LIMIT_SECONDS = Path(sys.argv[1]), 6.0
BAD = 1
"""The node that makes the mistake."""


def say(text):
    """One write for a line, so that those of several ranks do not mix."""
    os.write(1, f"{text}\n".encode())


def file_for(node):
    """A good file for all nodes but one, of the same name."""
    folder = FOLDER / ("bad" if node == BAD else "good")
    return folder / "x.h5"


def write_files():
    for name, rows in (("good", 9), ("bad", 9)):
        (FOLDER / name).mkdir(exist_ok=True)
        with h5py.File(FOLDER / name / "x.h5", "w") as file:
            file["a" if name == "good" else "b"] = np.zeros((rows, 2), np.float32)
    np.save(FOLDER / "good" / "x.npy", np.zeros((9, 2), np.float32))
    whole = (FOLDER / "good" / "x.npy").read_bytes()
    (FOLDER / "bad" / "x.npy").write_bytes(whole[:-24])  # without its last rows


def without_memory():
    """Makes this node's next large array fail."""
    used = int(Path("/proc/self/status").read_text().split("VmData:")[1].split()[0]) * 1024
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (used + 2**25, hard))


def shape(node):
    x = ja.asarray(jnp.ones((3 + (node == BAD), 2))).T
    return ja.Array(x.block, x.layout, ja.ones(1).world).world.reduce(x.block, "sum")


def operation(node):
    x = ja.ones((9, 2), split=0)
    return x[4] if node == BAD else ja.sum(x)


def data_set(node):
    return ja.load(file_for(node), dataset="a")


def rows(node):
    return ja.load(file_for(node).with_suffix(".npy"))


def memory_of_file(node):
    if node == BAD:
        limit = resource.getrlimit(resource.RLIMIT_DATA)
        without_memory()
    try:
        return ja.load(FOLDER / "good" / "large.npy", split=None)
    finally:
        if node == BAD:
            resource.setrlimit(resource.RLIMIT_DATA, limit)


def printed(node):
    x = ja.ones((9, 2), split=0)
    if node == BAD:
        str(x), repr(x), x.shape, x.block[0]
    assert float(ja.sum(x)) == 18


def left_out(node):
    if node != BAD:
        return ja.sum(ja.ones((9, 2), split=0))
    time.sleep(60)


def killed(node):
    if node == BAD:
        os.kill(os.getpid(), signal.SIGKILL)
    return ja.sum(ja.ones((9, 2), split=0))


def raised(node):
    x = ja.ones((9, 2), split=0)
    if node == BAD:
        x = x + np.ones(7)
    return ja.sum(x)


def memory(node):
    x = ja.ones((9000, 2), split=0)
    if node == BAD:
        without_memory()
    return ja.sum(x @ ja.ones((2, 40_000)))


with jdaso.Session(timeout_seconds=LIMIT_SECONDS) as session:
    if session.node == 0:
        write_files()
        np.save(FOLDER / "good" / "large.npy", np.zeros(2**24, np.float32))
    session.agree("go on to the cases", [])
    ja.sum(ja.ones(9, split=0))  # opens the communicator
    for case in sys.argv[2:]:
        begin = time.monotonic()
        try:
            globals()[case](session.node)
            say(f"{session.node} {case} fine")
        except Exception as error:
            text = str(error).replace("\n", " ")
            took = f"{time.monotonic() - begin:.1f}"
            say(f"{session.node} {case} {took} {type(error).__name__} {text}")
            if case in ("left_out", "killed", "raised", "memory"):
                raise
