"""Emulated hosts and links."""
