"""Models of the time of exchanges and pipelines."""
