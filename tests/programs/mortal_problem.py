"""The problem of `mortal.py`, and what it comes to by its definition."""

import numpy as np

STEPS, WARMUP, COOLDOWN, EVERY, DELAY, SIZE, RATE = 28, 4, 6, 5, 2, 37, 0.1
START = np.linspace(-1, 1, SIZE, dtype=np.float32)


def gradients(nodes):
    random = np.random.default_rng(5)
    return random.normal(size=(STEPS, nodes, SIZE)).astype(np.float32)


def reference(nodes, dead_at, merge):
    """DASO with SGD in float64, ``[nodes, size]``; nodes fail before the updates of these steps."""
    grads = gradients(nodes).astype(np.float64)
    x, sent, start = np.tile(START.astype(np.float64), (nodes, 1)), None, None
    end = STEPS - COOLDOWN
    for n, g in enumerate(grads):
        live = [p for p in range(nodes) if dead_at.get(p, STEPS) > n]
        if not WARMUP <= n < end:
            x[live] -= RATE * g[live].mean(0)
            if end <= n < end + 2:
                x[live] = x[live].mean(0)
            continue
        x[live] -= RATE * g[live]
        last = n == end - 1
        if sent is not None and (n - start >= DELAY or last):
            snapshot, mean, count = sent
            age = n - start
            if merge == "paper":
                x[live] = (2 * age * x[live] + count * mean) / (2 * age + count)
            else:
                x[live] += mean - snapshot[live]
            sent = None
        if last:
            x[live] = x[live].mean(0)
        elif n == WARMUP or n - start >= EVERY:
            sent, start = (x.copy(), x[live].mean(0), len(live)), n
    return x
