"""Each node's part of all nodes' numbers: a node gives n bytes and gets n."""

from ._collective import run

if __name__ == "__main__":
    run("alltoall")
