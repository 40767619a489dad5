"""All nodes' numbers on every node: a node gives n / P bytes and gets n."""

from ._collective import run

if __name__ == "__main__":
    run("allgather", gathers=True)
