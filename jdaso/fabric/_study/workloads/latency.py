"""Half the time of a message of n bytes from node 0 to node 1 and back."""

import numpy as np

from ._given import give, given
from ._start import transport_of
from ._timing import measure


def main() -> None:
    """Runs the program."""
    about = given()
    transport = transport_of(about)
    send = np.ones(about.numbers, np.float32)
    least = 2 * send.nbytes
    result = measure(transport, transport.ping_pong(send), least, about.settings, parts=2)
    if transport.rank == 0:
        give(result)


if __name__ == "__main__":
    main()
