"""Wires: the formats that cross the network, float32 rows to bytes and back.

One class per format, each in its own file, with the verbs of `base.Wire`. A new format is a new
file and a name below.

May live here: the bytes of a format. May not: nodes, MPI, and the meaning of the numbers.
"""

from .base import BLOCK as BLOCK
from .base import Wire as Wire
from .base import attach as attach
from .base import detach as detach
from .base import sum_rows as sum_rows
from .bfloat16 import BFloat16
from .float32 import Float32
from .int4 import Int4
from .int8 import Int8

WIRES: dict[str, Wire] = {wire.name: wire for wire in (Float32(), BFloat16(), Int8(), Int4())}


def wire_of(wire: str | Wire) -> Wire:
    """The wire format with that name; an instance of `Wire` is returned unchanged.

    Raises:
        ValueError: no wire has this name.
    """
    if isinstance(wire, Wire):
        return wire
    if wire not in WIRES:
        raise ValueError(f"wire must be one of {', '.join(WIRES)}, got {wire!r}.")
    return WIRES[wire]
