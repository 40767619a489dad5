"""Studies of fabrics: cells that are declared, launched one by one, and kept as rows.

May live here: the declaration of a study, its cells and their order, the launch of a cell, the
proof of the fabric it used, the journal of rows, the workloads (`workloads`, programs of their own)
and the reading of rows: tables, fits, verdicts, claims.
May not: MPI and JAX outside `workloads` (whatever runs a study lives on when a cell fails), links
and namespaces (`_emulate`), and formulas of a step's time (`_model`).

A study goes `declaration` (TOML to `Study`) -> `crossing` (its cells and their order) -> `runner`
(every cell that the `journal` lacks) -> `cells` (one launch: `launch`, `processes`, `proof`) ->
`rows` (one JSON line, whose schema is `rows.schema.json`). Its answers go `measured` (rows to
launches) -> `verdicts` (one setting) -> `findings` (a claim about many) -> `answers` (JSON, whose
schema is `answers.schema.json`), beside `summaries`, `alpha_beta`, `curves` and `tables`.
"""
