"""Programs that measure jdaso; figures and what they changed are in ``NOTES.md``.

Start one from the repository's root, in an environment that has this checkout installed in place
(``make setup``, or ``pip install -e .``): ``.venv/bin/python benchmarks/speed/links.py --quick``.

==============  =================================================================================
``speed/``      steps and exchanges between hosts, beside the link's rate and beside peers
``cost/``       extra time, memory and compiling of a step, on one machine
``accuracy/``   accuracy after equal epochs, and time to an accuracy
``pipelines/``  models cut over several nodes
``data/``       `jdaso.data.Loader`
``recovery/``   failures on purpose, and checkpoints
``gpu/``        all of it on a GPU, with one command
``lib/``        shared code: launches, tables and JSON (`harness`), tasks, methods, the page
``all.py``      ``make bench``: the parts of ``docs/benchmarks.md``, in the order of importance
==============  =================================================================================

A file whose name begins with ``_`` is started by another one.
"""
