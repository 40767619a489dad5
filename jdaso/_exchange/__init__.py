"""An exchange as a compiled step sees it: start, wait, mean; all traceable by JAX.

Rule 1: only here do compiled steps call the host (`callbacks`).
Rule 2: no module here decides when to exchange, or what to do with a result: it returns sums,
headers, and what must be the same on all nodes (`replicated`).
"""
