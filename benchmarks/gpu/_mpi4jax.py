"""Part `mpi4jax`: its operations on a GPU's buffers, through the host and by a CUDA-aware MPI.

Each in a launch of its own: where the MPI is not CUDA-aware it ends by a segmentation fault.
"""

from benchmarks.gpu import _part
from benchmarks.gpu._launch import run_script

LIMIT_SECONDS = 120.0
TRANSPORTS = {"through the host": "0", "CUDA-aware MPI": "1"}


def main():
    options = _part.options()
    rows = _part.Rows()
    try:
        import mpi4jax
    except (ImportError, RuntimeError) as error:
        raise SystemExit(f"mpi4jax cannot be imported: {error}") from error
    if options.gpu and not mpi4jax.has_cuda_support():
        raise SystemExit(
            "mpi4jax was built without CUDA. Build it where the CUDA toolkit is: CUDA_PATH=TOOLKIT "
            "pip install --force-reinstall --no-deps --no-cache-dir --no-binary mpi4jax mpi4jax"
        )
    flags = ["--device", "gpu" if options.gpu else "cpu", *["--quick"] * options.quick]
    flags += ["--brief"] * options.brief
    for transport, direct in TRANSPORTS.items() if options.gpu else [("on a CPU", "0")]:
        environment = {"MPI4JAX_USE_CUDA_MPI": direct, "JDASO_GPU_TRANSPORT": transport}
        outcome = run_script(
            "_mpi4jax_step.py",
            flags,
            ranks=2,
            limit_seconds=LIMIT_SECONDS,
            environment=environment,
        )
        for row in outcome.result or []:
            rows.add(**row)
        if outcome.status != "ok":
            rows.add(transport=transport, right=f"{outcome.status}: {outcome.why.splitlines()[0]}")


if __name__ == "__main__":
    main()
