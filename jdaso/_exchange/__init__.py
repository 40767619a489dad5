"""An exchange as a compiled step sees it: late ones (`late`), sums and means; traceable by JAX.

Rule 1: compiled steps call the host in this package only (`callbacks`).
Rule 2: no module here decides when to exchange. They return changes, means and headers, and compare
what must be replicated (`replicated`).
"""
