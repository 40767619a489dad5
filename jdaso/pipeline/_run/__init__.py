"""From stages to steps: compiled passes, and messages between the ranks of a replica."""
