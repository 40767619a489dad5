"""Calls of Python functions from compiled steps, by name, through XLA's foreign function interface.

JAX's own callbacks put the number of a Python function of *this* process into the program, so that
its compilation cache leaves such programs out. Here the program names the function by a string that
another start of the same program gives to the same function, and is kept in the cache.

Rule 1: only `host_call` depends on how a call is made (`Session.close` drops functions).
Rule 2: a handler that cannot be built gives `None` and a reason in the log, never an error.

`call.cc` is the handler, `library` compiles and loads it, `functions` has the functions by name;
`copying` copies large arrays with several threads, `on_device` those that a call left on a GPU;
`pinned` provides memory that a GPU copies to and from fast, `aligned` memory that JAX does not
copy; `mixing` computes the sum of a checksum.
"""
