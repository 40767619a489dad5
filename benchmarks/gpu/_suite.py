"""Part `suite`: the project's own tests with JAX on the GPU.

Unit tests in one process, and tests/ranks with 1 and 2 ranks that share the GPU. Left out: the
launches (they start CPU devices of their own), and `users_compiler` (about bits of XLA's CPU
compiler). Matrix products are to be float32 ones (not TF32) and sums in a fixed order: tests
compare with NumPy, and steps bit by bit.
"""

import re

from benchmarks.gpu import _part
from benchmarks.gpu._launch import run_command

LIMIT_SECONDS = 3600.0
ENVIRONMENT = {"JAX_DEFAULT_MATMUL_PRECISION": "highest"}
LEFT_OUT = "not (users_compiler or mpi)"
QUICK = ("tests/unit/exchange/test_host_call.py", "tests/unit/mpi/test_topology.py")
COUNTS = re.compile(r"(\d+) (passed|failed|errors?|skipped|deselected)")
FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def runs(quick):
    """Name, ranks and pytest's arguments of each."""
    if quick:
        return [("two files of tests/unit", 1, [*QUICK, "-m", LEFT_OUT])]
    alone = ["tests/ranks", "-m", "not (several or users_compiler)"]
    return [
        ("tests/unit", 1, ["tests/unit", "-m", LEFT_OUT]),
        ("tests/ranks, 1 rank", 1, alone),
        ("tests/ranks, 2 ranks", 2, ["tests/ranks", "-m", LEFT_OUT]),
    ]


def row_of(name, outcome):
    counts = {what.removesuffix("s"): int(n) for n, what in COUNTS.findall(outcome.why)}
    failures = sorted(set(FAILURE.findall(outcome.why)))
    row = {"tests": name, "status": outcome.status, "seconds": outcome.seconds}
    row |= {what: counts.get(what, 0) for what in ("passed", "failed", "error", "skipped")}
    return row | {"which": ", ".join(failures)}


def main():
    options = _part.options()
    rows, environment = _part.Rows(), dict(ENVIRONMENT)
    if options.gpu:
        environment["XLA_FLAGS"] = "--xla_gpu_deterministic_ops=true"
    for name, ranks, arguments in runs(options.quick):
        command = ["-m", "pytest", "-p", "benchmarks.gpu._suite_plugin", "--color=no", "--tb=line"]
        command += ["-p", "no:cacheprovider", "--maxfail=200", *arguments]
        outcome = run_command(
            command, ranks=ranks, limit_seconds=LIMIT_SECONDS, environment=environment
        )
        rows.add(**row_of(name, outcome))


if __name__ == "__main__":
    main()
