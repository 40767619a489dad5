"""Parts of JAX that its public interface lacks or changes: the only use of ``jax._src``.

`host_call` calls Python from a compiled step, through `ffi` where its handler can be built. `cpus`
covers the CPU backend with its devices and threads, `world` the processes that jax.distributed
joins, `axes` the mesh axes around a trace, `in_trace` the calls in one, `debug` profiles and NaN.
`types` names the types that signatures share, `transformations` checks optax transformations.

Rule: nothing here depends on nodes, optimizers or MPI.
"""
