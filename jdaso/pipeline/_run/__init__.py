"""From stages to steps."""
