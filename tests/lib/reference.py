"""DASO in plain NumPy float32: a loop over nodes, every formula written out, no code of jdaso.

Parameters are one flat vector. `daso` returns the values on every node after every update, so that
a test can compare jdaso with it step by step. The rules are those of docs and design:

* blocking update: mean of the gradients, then the inner optimizer (or, with
  ``blocking="parameters"``, the inner optimizer, then the mean of parameters and float state);
* cycling update: inner optimizer, then merge an exchange that is due, then start one that is due;
* last cycling update: merge at the true age, exact mean of parameters and of the inner float state;
* first two cool-down updates: the same exact mean once more;
* third cool-down update: the elements `stopped`, given by the test, become 0 (rounding decides
  which few they are: those on which the nodes could not agree, on their way through zero);
* a single node exchanges nothing.

Sums run over the nodes in rank order.
"""

import dataclasses

import ml_dtypes
import numpy as np

F = np.float32


# Optimizers: `init` returns a dict of arrays; `update` returns (change of parameters, new state).


@dataclasses.dataclass(frozen=True)
class Sgd:
    """Momentum SGD; `nesterov` looks one step ahead."""

    rate: float
    momentum: float
    nesterov: bool = False

    def init(self, x):
        return {"trace": np.zeros_like(x)}

    def update(self, g, state, x):
        trace = g + F(self.momentum) * state["trace"]
        step = g + F(self.momentum) * trace if self.nesterov else trace
        return F(-self.rate) * step, {"trace": trace}


@dataclasses.dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter), bias corrected."""

    rate: float
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    decay: float = 1e-4

    def init(self, x):
        return {"count": 0, "mu": np.zeros_like(x), "nu": np.zeros_like(x)}

    def update(self, g, state, x):
        count = state["count"] + 1
        mu = F(self.b1) * state["mu"] + F(1 - self.b1) * g
        nu = F(self.b2) * state["nu"] + F(1 - self.b2) * g * g
        mu_hat = mu / (F(1) - F(self.b1) ** F(count))
        nu_hat = nu / (F(1) - F(self.b2) ** F(count))
        step = mu_hat / (np.sqrt(nu_hat) + F(self.eps)) + F(self.decay) * x
        return F(-self.rate) * step, {"count": count, "mu": mu, "nu": nu}


@dataclasses.dataclass(frozen=True)
class Sharing:
    """Second moments ``nu`` of a node's gradients, and those of the mean gradient of all nodes.

    With the mean ``u`` and the variance ``w`` of a gradient, nu is ``u^2 + w``, that of the mean
    gradient is ``u^2 + w / nodes``, and mu is u with a variance of ``nu (1 - b1) / (1 + b1)`` at
    most. Of the square of mu only counts what is above three times that.
    """

    adam: AdamW
    nodes: int

    def _square(self, state):
        """Returns ``u^2``, on the scale of nu, whose weights do not yet add up to 1."""
        b1, b2, n, nu = self.adam.b1, self.adam.b2, max(state["count"], 1), state["nu"]
        mu = state["mu"] / F(1 - b1**n) * F(np.sqrt(1 - b2**n))
        noise = F(3 * (1 - b1) / (1 + b1))
        return np.clip((mu * mu - noise * nu) / (F(1) - noise), F(0), nu)

    def shared(self, state):
        w = state["nu"] - self._square(state)
        return state | {"nu": self._square(state) + w / F(self.nodes)}

    def own(self, state):
        w = (state["nu"] - self._square(state)) * F(self.nodes)
        return state | {"nu": self._square(state) + w}

    def kept(self, before, new):
        """Corrects an update that began with `shared` of `before`, as if with that itself."""
        used, own = self.shared(before)["nu"], before["nu"]
        return new | {"nu": new["nu"] + F(self.adam.b2) * (own - used)}


# Wires: the values of a vector when it arrives.


def bfloat16(v):
    return v.astype(ml_dtypes.bfloat16).astype(F)


def int8(v, block=256):
    out = np.empty_like(v)
    for begin in range(0, v.size, block):
        part = v[begin : begin + block]
        scale = np.max(np.abs(part)) / F(127)
        levels = np.rint(part / scale) if scale > 0 else np.zeros_like(part)
        out[begin : begin + block] = levels * scale
    return out


def int4(v, block=64):
    out = np.empty_like(v)
    for begin in range(0, v.size, block):
        part = v[begin : begin + block]
        scale = bfloat16(np.max(np.abs(part)) * F(1 / 7))
        levels = np.rint(part / scale) if scale > 0 else np.zeros_like(part)
        out[begin : begin + block] = levels * scale
    return out


WIRES = {"bfloat16": bfloat16, "int8": int8, "int4": int4}
BLOCKS = {"int8": 256, "int4": 64}


def add(values):
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def mean(values):
    return add(values) / F(len(values))


def rows_of_blocks(places, nodes, block=256):
    """The node that sums each element: equal rows of whole blocks, the last ones partly empty."""
    width = -(-(int(places[-1]) + 1) // (nodes * block)) * block
    return places // width


def places_of(leaves, wire):
    """The position of each element in the vector; of blockwise wires each leaf begins a block."""
    room = BLOCKS.get(wire, 1)
    begins = np.cumsum([0, *(-(-size // room) * room for size in leaves)])[:-1]
    return np.concatenate(
        [begin + np.arange(size) for begin, size in zip(begins, leaves, strict=True)]
    )


@dataclasses.dataclass
class Trace:
    """The history of a run: parameters and inner states of all nodes after each update."""

    params: list  # [step][node] -> vector
    inner: list  # [step][node] -> dict
    events: list  # (step, "start" or "merge", age)
    slack: np.ndarray  # jumps of roundings on the wire that depended on the last bits of float32
    final: list  # parameters after `finalize`, [node]


def daso(
    x0,
    gradient,
    *,
    nodes,
    inner,
    total,
    warmup=0,
    cooldown=0,
    sync_every=4,
    delay=1,
    merge="corrected",
    outer=None,
    wire="float32",
    blocking="gradients",
    owners=rows_of_blocks,
    leaves=None,
    fragments=None,
    second_moments="shared",
    steps=None,
    stopped=None,
):
    """Trains `nodes` nodes from `x0`; ``gradient(step, node, x)`` is node's gradient at x.

    `sync_every` and `delay` are numbers, or tuples from which exchange k takes entry k (modulo the
    length): the delay of exchange k, and the distance from its start to the next. `merge` is
    "paper", "corrected" or "outer" (then `outer` is the outer optimizer). `owners(places, nodes)`
    gives the node that sums each element, and so keeps the error of a narrow wire's second
    rounding. `leaves` are the sizes of the leaves (default: one leaf); blockwise wires scale each
    separately. `fragments` lists, for each fragment, the elements of its pieces of leaves
    (default: one fragment of all `leaves`); fragment f starts ``floor(f B / F)`` steps after
    fragment 0, and its exchange k takes entry k of both, too. `second_moments` is "own" or
    "shared": then, while cycling, AdamW steps by second moments as the mean gradient would have
    them. `steps` stops early, or goes on past
    `total`. `stopped` is a mask of elements.
    """
    everybody = range(nodes)
    last_cycling = total - cooldown - 1
    periods, delays = np.atleast_1d(sync_every), np.atleast_1d(delay)

    if fragments is None:
        ends = np.cumsum(leaves or (x0.size,))[:-1]
        fragments = [np.split(np.arange(x0.size), ends)]
    fragments = [[np.asarray(piece) for piece in pieces] for pieces in fragments]
    count = len(fragments)

    x = [x0.astype(F) for _ in everybody]
    state = [inner.init(x0) for _ in everybody]
    base = None  # common to all nodes
    outer_state = [None] * count
    error = [np.zeros_like(x0) for _ in everybody]
    flying = [None] * count  # (started, snapshots, delay)
    cycle, begun, started = -1, -1, [-1] * count
    trace = Trace([], [], [], np.zeros_like(x0), [])
    adam = isinstance(inner, AdamW) and nodes > 1 and blocking == "gradients"
    sharing = Sharing(inner, nodes) if adam and second_moments == "shared" else None

    def send(f, snapshots, age):
        """Mean of the snapshots as it arrives, and the errors that remain to be sent."""
        at = np.concatenate(fragments[f])
        if wire == "float32":
            return mean(snapshots), [error[p][at] for p in everybody]
        sizes = [piece.size for piece in fragments[f]]
        ends = np.cumsum(sizes)[:-1]
        code = lambda v: np.concatenate([WIRES[wire](part) for part in np.split(v, ends)])  # noqa: E731
        wanted = [snapshots[p] - base[at] + error[p][at] for p in everybody]
        sent = [code(v) for v in wanted]
        total_sent = add(sent)
        arrived = code(total_sent)
        for v in [*wanted, total_sent]:
            near = 8 * np.finfo(F).eps * (np.abs(v) + np.abs(x[0][at]))
            jump = np.abs(code(v + near) - code(v - near))
            trace.slack[at] += np.where(jump > 4 * near, jump, F(0))
        lost = F(1 - 2 * age / (2 * age + nodes)) if merge == "paper" else F(1)
        mine = owners(places_of(sizes, wire), nodes)
        left = [
            lost * (wanted[p] - sent[p] + np.where(mine == p, total_sent - arrived, F(0)))
            + (1 - lost) * error[p][at]  # the share of x that stays lacks it
            for p in everybody
        ]
        return base[at] + arrived / F(nodes), left

    def merged(f, x, age, snapshots):
        """Parameters after the merge; updates `base`, `error` and the outer optimizer's state."""
        nonlocal base
        at = np.concatenate(fragments[f])
        average, left = send(f, snapshots, age)
        own = [x[p][at] for p in everybody]
        if merge == "paper":
            a, nodes_ = F(age), F(nodes)
            new = [(2 * a * own[p] + nodes_ * average) / (2 * a + nodes_) for p in everybody]
        elif merge == "corrected":
            new = [own[p] + (average - snapshots[p]) for p in everybody]
        else:
            change, outer_state[f] = outer.update(base[at] - average, outer_state[f], base[at])
            average = base[at] + change
            new = [own[p] + (average - snapshots[p]) for p in everybody]
        base = put(base, at, average)
        for p in everybody:
            error[p] = put(error[p], at, left[p])
        return [put(x[p], at, new[p]) for p in everybody]

    def pay(x):
        """Adds the error feedback of a narrow wire before an exact mean."""
        nonlocal error
        x, error = [x[p] + error[p] for p in everybody], [np.zeros_like(x0) for _ in everybody]
        return x

    for n in range(total if steps is None else steps):
        g = [gradient(n, p, x[p]) for p in everybody]
        before = x
        if n < warmup or n > last_cycling:
            if blocking == "gradients":
                g = [mean(g) for _ in everybody]
            x, state = apply(inner, g, state, x)
            if blocking == "parameters" or n - last_cycling in (1, 2):
                x, state = average(x, state)
            if sharing and n == warmup - 1 < last_cycling:
                state = [sharing.own(s) for s in state]
            if n == last_cycling + 3 and stopped is not None:
                for p in everybody:
                    # Between half and double of x, x + (target - x) is the target (Sterbenz).
                    low, high = np.sort([before[p] / 2, before[p] * 2], axis=0)
                    assert not np.any(((low <= x[p]) & (x[p] <= high))[stopped])
                x = [np.where(stopped, F(0), x[p]) for p in everybody]
        else:
            if n == warmup:
                base = x[0].copy()
                for f in range(count):
                    size = sum(piece.size for piece in fragments[f])
                    outer_state[f] = outer.init(np.zeros(size, F)) if outer else None
            if sharing:
                x, new = apply(inner, g, [sharing.shared(s) for s in state], x)
                state = [sharing.kept(*pair) for pair in zip(state, new, strict=True)]
            else:
                x, state = apply(inner, g, state, x)
            what = lambda name, f: name if count == 1 else (name, f)  # noqa: E731
            for f in range(count):
                if not flying[f]:
                    continue
                age, snapshots = n - flying[f][0], flying[f][1]
                if age >= flying[f][2] or n == last_cycling:
                    x = merged(f, x, age, snapshots)
                    trace.events.append((n, what("merge", f), age))
                    flying[f] = None
            for f in range(count):
                if n == last_cycling or nodes == 1:
                    break
                if f == 0 and (n == warmup or n - begun == periods[cycle % len(periods)]):
                    cycle, begun = cycle + 1, n
                turn = begun + f * periods[cycle % len(periods)] // count
                if started[f] < begun and n == turn:
                    started[f] = n
                    at = np.concatenate(fragments[f])
                    flying[f] = (n, [v[at] for v in x], delays[cycle % len(delays)])
                    trace.events.append((n, what("start", f), 0))
            if n == last_cycling:
                state = [sharing.shared(s) for s in state] if sharing else state
                x, state = average(pay(x), state)
        trace.params.append(x)
        trace.inner.append(state)

    for f in range(count):
        if flying[f]:
            x = merged(f, x, n - flying[f][0], flying[f][1])
    trace.final = [mean(pay(x))] * nodes
    return trace


def put(v, at, values):
    """A copy of the vector with some of its elements replaced."""
    v = v.copy()
    v[at] = values
    return v


def apply(inner, g, state, x):
    done = [inner.update(g[p], state[p], x[p]) for p in range(len(x))]
    return [x[p] + done[p][0] for p in range(len(x))], [new for _, new in done]


def average(x, state):
    """Exact mean of parameters and of the float state (a count is not averaged)."""
    means = {
        name: mean([s[name] for s in state]) if isinstance(value, np.ndarray) else value
        for name, value in state[0].items()
    }
    return [mean(x)] * len(x), [means] * len(x)


@dataclasses.dataclass(frozen=True)
class Quadratic:
    """A problem whose nodes pull apart: node p's gradient at step n is ``h * x - pull[n, p]``.

    Curvatures in [0.5, 1] make every optimizer contract, so that rounding errors add up and never
    grow: after n updates two correct programs differ by a few n rounding errors of the largest
    number involved (`tolerance`).
    """

    steps: int
    nodes: int
    size: int = 24
    seed: int = 0

    @property
    def x0(self):
        return np.random.default_rng(self.seed + 1).uniform(-1, 1, self.size).astype(F)

    @property
    def curvature(self):
        return np.random.default_rng(self.seed + 2).uniform(0.5, 1, self.size).astype(F)

    @property
    def pull(self):
        shape = (self.steps, self.nodes, self.size)
        return np.random.default_rng(self.seed + 3).normal(size=shape).astype(F)

    def gradient(self):
        curvature, pull = self.curvature, self.pull
        return lambda n, p, x: curvature * x - pull[n, p]


def tolerance(trace):
    """Float32 rounding of a whole run, for each element.

    One update does at most about 16 roundings of numbers no larger than the largest parameter or
    momentum M (the optimizer, the merge, the sum over the nodes, optax's x + (target - x)), each
    off by at most M eps / 2, and nothing in `Quadratic` makes an error grow.

    A narrow wire adds a jump if a number was so close to the midpoint between two others that its
    last bits in float32 decided. The error feedback takes the jump back; until then parameters are
    off by at most the jump, and a momentum of 0.5 by twice the jump.
    """
    largest = max(
        np.max(np.abs(value))
        for step in trace.params + [[s.get("trace", 0) for s in states] for states in trace.inner]
        for value in step
    )
    return 8 * len(trace.params) * np.finfo(F).eps * largest + 2 * trace.slack
