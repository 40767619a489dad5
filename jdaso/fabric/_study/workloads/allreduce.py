"""The sum of all nodes' numbers on every node: of n bytes a node gives n and gets n."""

from ._collective import run

if __name__ == "__main__":
    run("allreduce")
