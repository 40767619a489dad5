"""Parts of JAX that its public interface lacks or changes: the only place of ``jax._src``.

`host_call` calls Python from a compiled step, through `ffi` where its handler can be built. `cpus`
has the CPU backend with its devices and threads, `world` the processes that jax.distributed joins,
`axes` the mesh axes around a trace, `debug` profiles and NaN. `types` names what signatures share.

Rule: nothing here knows nodes, optimizers or MPI.
"""
