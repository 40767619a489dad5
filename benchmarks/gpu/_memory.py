"""Part `memory`: device memory that jdaso adds to a step, in copies of the parameters.

`step_memory.py` as it is, for the accelerator's compiler: by its own count, nothing is run.
"""

from benchmarks.cost import step_memory
from benchmarks.gpu import _part

BRIEF_WIRES = ("float32", "int8")


def main():
    options = _part.options()
    _part.share_gpus()
    from mpi4py import MPI

    rows = _part.Rows(MPI.COMM_WORLD.Get_rank())
    leaves = options.pick(step_memory.LEAVES, step_memory.LEAVES, step_memory.QUICK_LEAVES)
    wires = options.pick(step_memory.WIRES, BRIEF_WIRES, BRIEF_WIRES[:1])
    for _, row in step_memory.measure(leaves, wires):
        _part.require(options)  # a session has dealt out the GPUs
        rows.add(**row, copies=row["state"] + row["temporaries"])


if __name__ == "__main__":
    main()
