"""A study's program: iperf3 between two nodes; an iteration is the time of one byte in a second."""

import json
import subprocess
import sys
import time

from mpi4py import MPI

SETTINGS = json.loads(sys.argv[1])["settings"]
PORT = "5201"


def main() -> None:
    comm = MPI.COMM_WORLD
    rank, seconds = comm.Get_rank(), int(SETTINGS["seconds"])
    address = comm.bcast(_own_address() if rank == 0 else None)
    if rank == 0:
        with subprocess.Popen(["iperf3", "-s", "-1", "-p", PORT], stdout=subprocess.DEVNULL):
            comm.Barrier()
    elif rank == 1:
        comm.Barrier()
        time.sleep(0.5)  # until the server listens
        command = ["iperf3", "-c", address, "-p", PORT, "-t", str(seconds), "-O", "1", "-J"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        spent = [8 / x["sum"]["bits_per_second"] for x in json.loads(done.stdout)["intervals"]]
        comm.send(spent[1:], 0)  # the first second is warm-up
    if rank == 0:
        spent = comm.recv(source=1)
        print("\njdaso-study " + json.dumps({"seconds": spent}), flush=True)


def _own_address() -> str:
    """Returns the address of eth0 of this host."""
    words = ["ip", "-j", "-4", "address", "show", "dev", "eth0"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True)
    return json.loads(done.stdout)[0]["addr_info"][0]["local"]


if __name__ == "__main__":
    main()
