"""Emulated hosts on this machine, with links of a given rate between them."""
