"""ResNet-1001 on up to 512 nodes, as jdaso's model sees it. Computed; nothing is measured.

    python benchmarks/pipelines/pipelines_at_scale.py [--quick] [--batch 256]
        [--jitter 0.0] [--rate 100gbit]

Beside HyPar-Flow (arXiv 1911.05146), which reports for ResNet-1001 up to 1.6 times the speed of
Horovod's data parallelism, 110 times one node's speed on 128 nodes of Stampede2, and 481 times on
512 nodes of Frontera. Numbers in the table are speeds, that of one node which computes alone being
1, with as many images a node in all columns:

- data: a replica a node; its averages hide behind two thirds of a step, as Horovod's may.
- in node: a pipeline in each node, a partition a core, as HyPar-Flow does it; "/ own": of the same
  on one node, as HyPar-Flow's 110 and 481 are taken to be.
- 4 nodes: a pipeline over 4 nodes, a partition a node, 16 micro-batches.

Names with "daso" average in bfloat16 every 4 steps, 4 steps late; the others float32 gradients at
every step.
"""

import argparse
import dataclasses
import statistics
from typing import NamedTuple

from benchmarks.lib import harness
from jdaso.fabric import Fabric, Hybrid, predict, predict_hybrid, predict_synchronous
from jdaso.fabric._emulate.cluster import bits_per_second_of
from jdaso.pipeline import make_schedule
from jdaso.pipeline._plan.search import LineValue, best_cuts

BLOCKS = 111  # residual blocks of each of three groups: 9 * 111 + 2 = 1001 layers
BACKWARD = 2.0  # a backward pass, in forward ones
BALANCE = 1.1  # of the cut, as jdaso.pipeline.partition's
ACROSS = 4  # nodes of a pipeline with a partition a node
NODES, QUICK_NODES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512), (1, 4, 128)


class Machine(NamedTuple):
    """A kind of node; whatever is not in its makers' sheets is assumed."""

    cores: int
    rate: str  # 100 Gbit/s both: Omni-Path, InfiniBand HDR100
    latency_seconds: float  # assumed
    teraflops: float  # assumed: what a node does of small convolutions, about a tenth of its peak
    copy_bytes_per_second: float  # assumed
    reported: tuple[int, int]  # nodes, and how many times one node's speed


MACHINES = {
    "stampede2": Machine(48, "100gbit", 2e-6, 0.4, 60e9, (128, 110)),
    "frontera": Machine(56, "100gbit", 1.5e-6, 0.6, 80e9, (512, 481)),
}


class Layer(NamedTuple):
    """A convolution, and what goes with it."""

    flops: float  # forward, for one image
    parameters: int
    bytes: float  # that it makes, float32


def resnet1001():
    """Returns the layers, for images of 32 x 32 x 3, and the values between layers.

    The bottleneck network of 1001 layers for CIFAR-10 as Keras' example builds it (He et al.,
    arXiv 1603.05027): groups of 16, 64 and 128 filters whose blocks make 64, 128 and 256 channels.
    Only trained numbers are counted; with the running means of batch normalization there are 30.5
    million.
    """
    layers, values = [], []

    def layer(inputs, outputs, kernel, side, normalized):
        parameters = kernel**2 * inputs * outputs + outputs + 2 * normalized
        flops = 2 * kernel**2 * inputs * outputs * side**2
        layers.append(Layer(flops, parameters, 4 * outputs * side**2))
        return len(layers) - 1

    last, channels, narrow = layer(3, 16, 3, 32, 16), 16, 16
    for group in range(3):
        wide, side = narrow * (4 if group == 0 else 2), 32 >> group
        for block in range(BLOCKS):
            first_of_all = group == block == 0
            one = layer(channels, narrow, 1, side, 0 if first_of_all else channels)
            two = layer(narrow, narrow, 3, side, narrow)
            three = layer(narrow, wide, 1, side, narrow)
            values += [LineValue(one, (two,), layers[one].bytes)]
            values += [LineValue(two, (three,), layers[two].bytes)]
            if block == 0:  # the shortcut is a convolution too, done beside the third
                flops, parameters = 2 * channels * wide * side**2, channels * wide + wide
                own = layers[three]
                layers[three] = Layer(own.flops + flops, own.parameters + parameters, own.bytes)
            values += [LineValue(last, (one, three), layers[last].bytes)]
            last, channels = three, wide
        narrow = wide
    head = layer(channels, 10, 1, 1, channels)
    values += [LineValue(last, (head,), layers[last].bytes)]
    return layers, values


def cut(layers, values, stages):
    """Returns FLOPs and parameters of each stage per image, and the traffic between stages."""
    costs = [each.flops for each in layers]
    places = best_cuts(costs, values, stages, allowed=range(1, len(layers)), balance=BALANCE)
    edges = [0, *places, len(layers)]
    of = [stage for stage in range(stages) for _ in range(edges[stage], edges[stage + 1])]
    flows = {}
    for value in values:
        for target in {of[used] for used in value.used} - {of[value.made]}:
            pair = of[value.made], target
            flows[pair] = flows.get(pair, 0.0) + value.bytes
    spans = [layers[begin:end] for begin, end in zip(edges, edges[1:], strict=False)]
    return (
        [sum(each.flops for each in span) for span in spans],
        [sum(each.parameters for each in span) for span in spans],
        [(source, target, size) for (source, target), size in sorted(flows.items())],
    )


def pipeline(parts, batch, microbatches, flops_per_second, **settings):
    """A `Hybrid` of the parts, with `batch` images for each replica."""
    costs, parameters, flows = parts
    images = batch / microbatches
    forward = tuple(images * flops / flops_per_second for flops in costs)
    return Hybrid(
        order=make_schedule("1f1b", len(costs), microbatches).order,
        forward_seconds=forward,
        backward_seconds=tuple(BACKWARD * seconds for seconds in forward),
        traffic=tuple((source, target, images * size) for source, target, size in flows),
        parameters=tuple(parameters),
        samples=batch,
        **settings,
    )


def rows_of(machine, options, network, nodes):
    """The table, and what one node's step takes."""
    layers, values = network
    flops = 1e12 * machine.teraflops
    whole = pipeline(cut(layers, values, 1), options.batch, 1, flops)
    alone = whole.work_seconds
    inside = pipeline(
        cut(layers, values, machine.cores),
        options.batch,
        options.microbatches,
        flops / machine.cores,
        partitions_per_node=machine.cores,
    )
    across = pipeline(cut(layers, values, ACROSS), ACROSS * options.batch, 4 * ACROSS, flops)
    training = whole.training(sum(whole.parameters), alone)
    rate = options.rate or machine.rate
    one, rows = {}, []
    for count in nodes:
        fabric = Fabric(
            count,
            bits_per_second_of(rate),
            machine.latency_seconds,
            copy_bytes_per_second=machine.copy_bytes_per_second,
            accelerators=False,
            jitter_seconds=options.jitter * alone,
        )
        waits = predict_synchronous(fabric, training, behind_backward=BACKWARD / (1 + BACKWARD))
        row = {
            "nodes": count,
            "data": round(count * alone / waits.step_seconds, 2),
            "data, daso": round(count * alone / predict(fabric, training).step_seconds, 2),
        }
        for name, kind in (("in node", inside), ("4 nodes", across)):
            replicas = count * kind.partitions_per_node // kind.partitions
            for averaging, shown in (("synchronous", name), ("daso", f"{name}, daso")):
                if not replicas:
                    row[shown] = ""
                    continue
                hybrid = dataclasses.replace(kind, replicas=replicas, averaging=averaging)
                found = predict_hybrid(fabric, hybrid)
                row[shown] = round(found.one_node, 2)
                if kind is inside:
                    one.setdefault(shown, found.one_node)
                    row[f"{shown} / own"] = round(found.one_node / one[shown], 2)
        rows.append(row)
    return rows, alone


def explained(machine, layers, alone, rows):
    """Prints the conditions under which this model's numbers would equal the paper's."""
    nodes, times = machine.reported
    row = next((row for row in rows if row["nodes"] == nodes), None)
    lost = nodes / times - 1  # of a step
    spread = lost / statistics.NormalDist().inv_cdf((nodes - 0.375) / (nodes + 0.25))
    sent = 2 * (nodes - 1) / nodes * 32 * sum(each.parameters for each in layers)
    print(
        f"HyPar-Flow reports {times} times one node's speed on {nodes} nodes. Of a step of "
        f"{alone:.3g} s that is {lost * alone:.2g} s lost: what steps that spread by {spread:.1%} "
        "cost whoever waits for the slowest, or what averages take at "
        f"{sent / (lost * alone) / 1e9:.2g} Gbit/s a node, with nothing of them hidden."
    )
    if row:
        needed = 1.6 * row["data"] / row["in node"]
        print(
            f"On {nodes} nodes pipelines in nodes are 1.6 times as fast as data parallelism if "
            f"cores with a partition each do {needed:.2f} times what they do for one process."
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--batch", type=int, default=256, help="images a node and step")
    parser.add_argument("--microbatches", type=int, default=128, help="of a pipeline in a node")
    parser.add_argument("--jitter", type=float, default=0.0, help="spread of steps, share of one")
    parser.add_argument("--rate", help="of a node's link; the machine's where left out")
    options = parser.parse_args()
    network = resnet1001()
    layers = network[0]
    print(
        f"ResNet-1001: {sum(each.parameters for each in layers) / 1e6:.2f} M parameters, "
        f"{sum(each.flops for each in layers) / 1e9:.2f} GFLOP forward for an image of 32 x 32"
    )
    for name, machine in MACHINES.items():
        rows, alone = rows_of(machine, options, network, QUICK_NODES if options.quick else NODES)
        harness.report(
            f"pipelines_at_scale_{name}",
            rows,
            cores_a_node=machine.cores,
            teraflops_a_node=machine.teraflops,
            rate=options.rate or machine.rate,
            latency_us=1e6 * machine.latency_seconds,
            copy_gbytes=machine.copy_bytes_per_second / 1e9,
            images_a_node=options.batch,
            microbatches_in_node=options.microbatches,
            jitter=options.jitter,
        )
        explained(machine, layers, alone, rows)


if __name__ == "__main__":
    main()
