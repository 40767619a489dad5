"""Compiler flags for the tests' programs."""

from importlib.metadata import version

# With these XLA compiles several times as fast for the CPU, and its programs run slower.
QUICKLY = "--xla_backend_optimization_level=0"
# With these, about two thirds of the time, and it rounds alike whatever the shape of an array is.
ALIKE = ""
if version("jaxlib") < "0.11":  # 0.11.2 has no such flag, and an unknown flag is fatal
    ALIKE = "--xla_cpu_use_fusion_emitters=false"
    # One module a program, not up to 32: LLVM prepares itself for each.
    QUICKLY += f" {ALIKE} --xla_cpu_parallel_codegen_split_count=1"
