"""Part `nothing_due`: a compiled step in which nothing is due, beside the bare optimizer's.

Two ranks, engine mpi4py: `overhead.py` as it is, with and without donation, on the accelerator.
"""

from benchmarks.cost import overhead
from benchmarks.gpu import _part

REPEATS, BRIEF_REPEATS, QUICK_REPEATS = 2000, 400, 20


def main():
    options = _part.options()
    _part.share_gpus()
    from mpi4py import MPI

    rows = _part.Rows(MPI.COMM_WORLD.Get_rank())
    repeats = options.pick(REPEATS, BRIEF_REPEATS, QUICK_REPEATS)
    for donate in (True, False):
        row = overhead.measure(repeats, donate)
        _part.require(options)  # a session has dealt out the GPUs
        if row is not None:
            rows.add(**row)


if __name__ == "__main__":
    main()
