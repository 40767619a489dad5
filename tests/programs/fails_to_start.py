"""Node 1 starts JAX, with several devices, before its session, which therefore cannot start."""

import os

os.environ["XLA_FLAGS"] += " --xla_force_host_platform_device_count=8"

import jax

import jdaso

if os.environ["PMI_RANK"] == "1":
    jax.devices()
with jdaso.Session() as session:
    session.agree("meet", [])
