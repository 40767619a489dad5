"""How the tests' programs are compiled."""

from importlib.metadata import version

# XLA compiles several times as fast with these, for the CPU, and its programs run slower.
QUICKLY = "--xla_backend_optimization_level=0"
if version("jaxlib") < "0.12":  # there the flag is gone, and a flag that is not known is fatal
    QUICKLY += " --xla_cpu_use_fusion_emitters=false"
