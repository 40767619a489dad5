"""PyTorch's data parallelism under the same steps as `throughput.py`, which starts this file.

It runs in an environment of its own, `.venv-peers` with torch in it, where there is no JAX. One
process a host, collectives by gloo over TCP.

- *torch ddp*: DistributedDataParallel. Its buckets are reduced while the backward pass goes on.
- *torch post-local sgd*: local steps, and the hierarchical averager's mean every B steps.
- *horovod*: its DistributedOptimizer, where it is installed.

`_torch_tasks` has the computation of a step.
"""

import argparse
import json
import os
import resource
import time
from collections import OrderedDict
from pathlib import Path

import torch
import torch.distributed as dist
from _torch_tasks import model_of
from torch.nn.parallel import DistributedDataParallel


def make_step(method, model, options):
    """A function that makes step n."""
    if method == "horovod":
        import horovod.torch as hvd  # pyright: ignore[reportMissingImports]

        hvd.init()
        inner = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(inner, named_parameters=model.named_parameters())
    else:
        model = DistributedDataParallel(model)
        inner = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        optimizer = inner if method == "torch ddp" else post_local(model, inner, options.sync_every)

    def step(n):
        optimizer.zero_grad()
        loss = model(n)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def post_local(model, inner, every):
    """No averages of gradients between hosts, and one of parameters every B steps."""
    from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
        PostLocalSGDState,
        post_localSGD_hook,
    )
    from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import (
        HierarchicalModelAverager,
    )
    from torch.distributed.optim import PostLocalSGDOptimizer

    alone, _ = dist.new_subgroups(group_size=1)
    model.register_comm_hook(PostLocalSGDState(None, alone, 0), post_localSGD_hook)
    groups = OrderedDict([(every, dist.get_world_size())])
    averager = HierarchicalModelAverager(period_group_size_dict=groups, warmup_steps=0)
    return PostLocalSGDOptimizer(optim=inner, averager=averager)


def bytes_sent():
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", required=True)
    parser.add_argument("--compute", required=True, help="paced, demo or text")
    parser.add_argument("--arrays", help="an .npz with what is trained on")
    parser.add_argument("--batch", type=int, required=True, help="of a node")
    parser.add_argument("--parameters", type=int, required=True)
    parser.add_argument("--step-ms", type=float, required=True)
    parser.add_argument("--sync-every", type=int, required=True)
    parser.add_argument("--warm", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rank, size = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
    address = "tcp://" + os.environ["JDASO_BENCHMARK_COORDINATOR"]
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=size)
    model = model_of(options, rank, size)
    parameters = sum(x.numel() for x in model.parameters())
    step = make_step(options.method, model, options)
    for n in range(options.warm):
        step(n)
    dist.barrier()
    sent, begin = bytes_sent(), time.perf_counter()
    for n in range(options.warm, options.warm + options.steps):
        step(n)
    seconds = (time.perf_counter() - begin) / options.steps
    sent = (bytes_sent() - sent) / options.steps
    dist.barrier()
    if rank == 0:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
        row = {"seconds": seconds, "sent": sent, "peak MB": peak, "parameters": parameters}
        Path(os.environ["JDASO_BENCHMARK_RESULT"]).write_text(json.dumps(row))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
