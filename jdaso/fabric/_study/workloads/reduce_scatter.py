"""Each node's part of a sum: a node gives n bytes and gets n / P."""

from ._collective import run

if __name__ == "__main__":
    run("reduce_scatter")
