"""The time of a message of n bytes among others: a window of them goes from node 0 to node 1."""

import numpy as np

from ._given import give, given
from ._start import transport_of
from ._timing import measure


def main() -> None:
    """Runs the program."""
    about = given()
    transport = transport_of(about)
    send, window = np.ones(about.numbers, np.float32), about.settings["window"]
    least = window * send.nbytes
    stream = transport.stream(send, window)
    result = measure(transport, stream, least, about.settings, parts=window)
    if transport.rank == 0:
        give(result)


if __name__ == "__main__":
    main()
