"""An exchange as a compiled step sees it: start, wait, mean; all traceable by JAX.

Rule 1: compiled steps call the host in this package only (`callbacks`).
Rule 2: no module here decides when to exchange or how to use a result. They return sums and
headers, and compare what must be replicated (`replicated`).
"""
