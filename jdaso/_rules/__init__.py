"""The paper, as pure functions."""
