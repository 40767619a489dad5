"""Part `calls`: microseconds of one call of the host from a compiled step, by the way of the call.

`calls.py` as it is, on the accelerator.
"""

from benchmarks.cost import calls
from benchmarks.gpu import _part


def main():
    options = _part.options()
    device, rows = _part.require(options), _part.Rows()
    for row in calls.table(options.quick):
        rows.add(device=device.device_kind, **row)


if __name__ == "__main__":
    main()
