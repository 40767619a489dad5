"""Ranks: starting them, and starting them again."""
