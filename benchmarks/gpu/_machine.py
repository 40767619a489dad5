"""The facts about the machine that `gpu.py` records."""

import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, distributions, version

from benchmarks.lib import harness


def machine():
    """The facts of `harness`, with the GPUs and the versions of JAX, CUDA and mpi4jax."""
    about = {**harness.machine(), "gpus": gpus()}
    installed = {d.name.lower() for d in distributions()}
    wanted = ["jaxlib", "mpi4jax", "flax", "optax"]
    wanted += sorted(name for name in installed if name.startswith(("jax-cuda", "nvidia-")))
    for name in wanted:
        try:
            about[name] = version(name)
        except PackageNotFoundError:
            about[name] = "missing"
    return about


def gpus():
    """Name, driver, memory, PCIe link and mode of each GPU, as the driver's tool says it."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "none (no nvidia-smi)"
    fields = "name,driver_version,memory.total,pcie.link.gen.current,pcie.link.width.current"
    fields += ",mig.mode.current,compute_mode"
    command = [tool, f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        return f"nvidia-smi failed: {error}"
    return "; ".join(done.stdout.split("\n")).strip("; ") or done.stderr.strip()


if __name__ == "__main__":
    harness.give(machine())
