"""The nodes of a run."""
