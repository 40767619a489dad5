"""Time to the first step of a very deep model on K nodes, and whether it fits into memory.

    python benchmarks/pipelines/deep_pipelines.py [--quick] [--depths 1001] [--partitions 1 2 4]
        [--image 28] [--batch 8] [--microbatches 4] [--limit-gb 4]

ResNets of bottleneck blocks with pre-activation, width 16, each block written out (no scan), as in
a program written without pipelines in mind. "plan s" is tracing and cutting; "first step s" is the
time from the program's start to the end of its first step, including all compiling. With
--limit-gb each process is limited to that much memory of its own (``RLIMIT_DATA``); "fits" tells
which of them trained.
"""

import argparse
import os
import resource
import subprocess
import time

BEGIN = time.perf_counter()

from benchmarks.lib import harness  # noqa: E402


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--name", default="deep_pipelines")
    parser.add_argument("--depths", type=int, nargs="+", default=[1001])
    parser.add_argument("--partitions", type=int, nargs="+", default=[2])
    parser.add_argument("--image", type=int, default=28)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--remat", action="store_true")
    parser.add_argument("--limit-gb", type=float)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    if options.quick:
        options.depths, options.steps = [20], 2
    return options


def init(blocks, random):
    import numpy as np

    def kernel(size, inputs, outputs):
        scale = np.sqrt(2 / (size * size * inputs))
        return random.normal(scale=scale, size=(size, size, inputs, outputs)).astype(np.float32)

    def scaling(channels):
        return {"scale": np.ones(channels, np.float32), "shift": np.zeros(channels, np.float32)}

    params, inputs = {"stem": kernel(3, 3, 16), "blocks": []}, 16
    for width in (16, 32, 64):
        for _ in range(blocks):
            block = {"norm1": scaling(inputs), "conv1": kernel(1, inputs, width)}
            block |= {"norm2": scaling(width), "conv2": kernel(3, width, width)}
            block |= {"norm3": scaling(width), "conv3": kernel(1, width, 4 * width)}
            if inputs != 4 * width:
                block["skip"] = kernel(1, inputs, 4 * width)
            inputs = 4 * width
            params["blocks"].append(block)
    return params | {"norm": scaling(inputs), "last": kernel(1, inputs, 10)[0, 0]}


def make_loss(blocks):
    import jax
    import jax.numpy as jnp
    import optax

    def conv(x, w, stride=1):
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            x, w, (stride, stride), "SAME", dimension_numbers=numbers
        )

    def norm(p, x):
        x = x - x.mean((1, 2), keepdims=True)
        x = x * jax.lax.rsqrt(jnp.square(x).mean((1, 2), keepdims=True) + 1e-5)
        return x * p["scale"] + p["shift"]

    def loss_fn(params, batch):
        x = conv(batch["image"], params["stem"])
        for number, p in enumerate(params["blocks"]):
            stride = 2 if number in (blocks, 2 * blocks) else 1
            y = jax.nn.relu(norm(p["norm1"], x))
            skip = conv(y, p["skip"], stride) if "skip" in p else x
            y = jax.nn.relu(norm(p["norm2"], conv(y, p["conv1"], stride)))
            y = jax.nn.relu(norm(p["norm3"], conv(y, p["conv2"])))
            x = skip + conv(y, p["conv3"]) / blocks
        logits = jax.nn.relu(norm(params["norm"], x)).mean((1, 2)) @ params["last"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()

    return loss_fn


def measure(options):
    import jax
    import numpy as np
    import optax

    import jdaso
    from jdaso import pipeline

    blocks = (options.depths[0] - 2) // 9
    random = np.random.default_rng(0)
    with jdaso.Session() as session:
        params = init(blocks, random)
        shape = (options.batch, options.image, options.image, 3)
        batch = {"image": random.standard_normal(shape).astype(np.float32)}
        batch["label"] = random.integers(0, 10, options.batch).astype(np.int32)
        since = time.perf_counter()
        plan = pipeline.partition(
            make_loss(blocks),
            params,
            batch,
            num_partitions=session.num_nodes,
            num_microbatches=options.microbatches,
        )
        if session.node == 0:
            print(plan, flush=True)
        row = {"plan s": time.perf_counter() - since}
        estimate = max(m.total for m in plan.memory(remat=options.remat))
        pipe = pipeline.Pipeline(
            plan, optax.sgd(1e-3, momentum=0.9), session=session, remat=options.remat
        )
        state, times = pipe.init(params), []
        for _ in range(options.steps):
            since = time.perf_counter()
            state, result = pipe.step(state, batch)
            jax.block_until_ready(state.params)
            times.append(time.perf_counter() - since)
            row.setdefault("first step s", time.perf_counter() - BEGIN)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
        peaks = session.control.allgather("compare memory", np.array([peak]))
        row |= {"step s": min(times), "loss": float(result.loss)}
        row |= {"imbalance": plan.imbalance, "MB in": sum(plan.bytes_in) / 1e6}
        row |= {"estimate GB": estimate / 1e9, "peak GB": float(peaks.max())}
        if session.node == 0:
            harness.give(row)


def main():
    options = parse()
    if harness.is_rank():
        if options.limit_gb is not None:
            limit = int(options.limit_gb * 1e9)
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        measure(options)
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    rows = []
    for depth in options.depths:
        for partitions in options.partitions:
            flags = ["--depths", depth, "--image", options.image, "--batch", options.batch]
            flags += ["--microbatches", options.microbatches, "--steps", options.steps]
            flags += ["--remat"] * options.remat
            if options.limit_gb is not None:
                flags += ["--limit-gb", options.limit_gb]
            row = {"depth": depth, "image": options.image, "K": partitions, "fits": True}
            try:
                row |= harness.launch(__file__, flags, partitions)
            except subprocess.CalledProcessError:
                row["fits"] = False
            rows.append(row)
            settings = {"batch": options.batch, "M": options.microbatches}
            harness.report(options.name, rows, **settings, limit_gb=options.limit_gb)


if __name__ == "__main__":
    main()
