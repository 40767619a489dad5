"""Studies of fabrics: cells that are declared, launched one by one, and kept as rows.

May live here: the declaration of a study, its cells and their order, the launch of a cell, the
proof of the fabric it used, the journal of rows, the workloads (`workloads`, programs of their own)
and the reading of rows: tables, fits, verdicts, claims.
May not: MPI and JAX outside `workloads` (the process of a study goes on when a cell fails), links
and namespaces (`_emulate`), and formulas of a step's time (`_model`).

A study goes through `declaration` (TOML to `Study`) -> `crossing` (its cells and their order) ->
`runner` (every cell that the `journal` lacks: `launch`, `processes`, `outcomes`) -> `rows` (one
JSON line, whose schema is `rows.schema.json`). Its answers go through `measured` (rows to launches)
-> `verdicts` (one setting) -> `findings` (a claim about many) -> `answers` (JSON, whose schema is
`answers.schema.json`), besides `summaries`, `alpha_beta`, `curves` and `tables`.
"""
