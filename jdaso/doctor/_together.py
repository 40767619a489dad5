"""Checks of all ranks together: shared GPUs and cores, lost messages, links, progress."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ._findings import Finding, SharedFinding, numbered
from ._launcher import binding

Records = Mapping[int, Mapping[str, Any]]
"""The record of each rank: rank, host, machine, cores, all_cores, gpus, file, findings."""

_SLOW = 0.5
_PROGRESS = 0.5


def by_machine(records: Records) -> list[list[int]]:
    """Returns the ranks of each machine."""
    found: dict[str, list[int]] = {}
    for rank in sorted(records):
        found.setdefault(records[rank]["machine"], []).append(rank)
    return list(found.values())


def gpus(records: Records) -> Iterator[SharedFinding]:
    """Finds ranks that would compute on the same GPU."""
    for ranks in by_machine(records):
        seen = [records[rank]["gpus"] for rank in ranks]
        if len(ranks) == 1 or not all(seen):
            continue
        taken = [gpu for each in seen for gpu in each]
        twice = sorted({gpu for gpu in taken if taken.count(gpu) > 1})
        if not twice:
            yield SharedFinding(Finding("GPUs of the host", "each rank has its own"), tuple(ranks))
        elif all(each == seen[0] for each in seen) and len(seen[0]) >= len(ranks):
            found = f"{len(seen[0])} for {len(ranks)} ranks; jdaso divides them"
            yield SharedFinding(Finding("GPUs of the host", found), tuple(ranks))
        else:
            remedy = (
                "Start as many ranks a host as it has GPUs, or give each its own (srun "
                "--gpus-per-task=1, or CUDA_VISIBLE_DEVICES by the local rank); "
                "Session(share_gpus=True) allows sharing."
            )
            found = f"several ranks see the same: {', '.join(twice)}"
            yield SharedFinding(Finding("GPUs of the host", found, False, remedy), tuple(ranks))


def nodes(records: Records, ranks: int, ranks_per_node: int) -> Iterator[SharedFinding]:
    """Finds nodes of several ranks that lie on different hosts; nothing if each rank is a node."""
    if ranks_per_node == 1:
        return
    what = f"nodes of {ranks_per_node} ranks"
    if ranks % ranks_per_node:
        remedy = f"Start a multiple of {ranks_per_node} (mpiexec -n {ranks_per_node}, or more)."
        found = f"{ranks} ranks do not form them" if ranks > 1 else "1 rank does not form one"
        yield SharedFinding(Finding(what, found, False, remedy))
        return
    for first in range(0, ranks, ranks_per_node):
        mine = [k for k in range(first, first + ranks_per_node) if k in records]
        hosts = {records[k]["machine"]: records[k]["host"] for k in mine}
        if len(hosts) < 2:
            continue
        found = f"node {first // ranks_per_node} lies on hosts {', '.join(hosts.values())}"
        remedy = (
            "Its ranks average their gradients over the network at every step. Start the ranks of "
            f"a host after each other (mpiexec -ppn {ranks_per_node}, or --map-by slot)."
        )
        yield SharedFinding(Finding(what, found, False, remedy), tuple(mine))


def cores(records: Records, vendor: str) -> Iterator[SharedFinding]:
    """Checks that each rank has at least one core, and is not bound to one if there are more."""
    what = "cores of the host"
    for ranks in by_machine(records):
        masks = [set(records[rank]["cores"]) for rank in ranks]
        together, there = set().union(*masks), records[ranks[0]]["all_cores"]
        each = max(1, there // len(ranks))
        flags = binding(vendor, each)
        bound = [r for r, mask in zip(ranks, masks, strict=True) if len(mask) == 1 < each]
        if len(together) < len(ranks):
            found = f"oversubscribed: {len(ranks)} ranks on {_cores(len(together))}"
            remedy = (
                f"Start at most {len(together)} ranks here, better half as many: MPI's thread "
                "wants a core of its own beside those that compute."
            )
            if there >= len(ranks):
                remedy = f"The host has {there} cores. Start the ranks with {flags}."
            yield SharedFinding(Finding(what, found, False, remedy), tuple(ranks))
        elif bound:
            found = f"bound to one core each, of {there}: nothing can be hidden"
            remedy = f"Start the ranks with {flags}, or unbound (Open MPI: --bind-to none)."
            yield SharedFinding(Finding(what, found, False, remedy), tuple(bound))
        else:
            found = f"{len(ranks)} rank{'s' * (len(ranks) > 1)} on {_cores(len(together))}"
            yield SharedFinding(Finding(what, found), tuple(ranks))


def _cores(count: int) -> str:
    return f"{count} core{'s' * (count > 1)}"


def checkpoints(
    records: Records, accounts: Mapping[int, Mapping[str, Any]]
) -> Iterator[SharedFinding]:
    """Checks that all ranks that could write see each other's files."""
    writers = [rank for rank, about in records.items() if about["file"]]
    if len(records) < 2 or not writers:
        return
    blind = sorted(r for r, account in accounts.items() if set(writers) - set(account["sees"]))
    if blind:
        found = f"ranks {numbered(blind)} do not see all that the others wrote"
        remedy = "Choose a folder on a file system that all hosts share (not /tmp or a local disk)."
        yield SharedFinding(Finding("checkpoint folder, shared", found, False, remedy))
    else:
        yield SharedFinding(
            Finding("checkpoint folder, shared", "every rank sees the others' files")
        )


def cut_off(
    size: int, records: Records, accounts: Mapping[int, Mapping[str, Any]], limit: float, mpi: str
) -> Iterator[SharedFinding]:
    """Finds pairs of ranks between which no message arrived."""
    missing = [rank for rank in range(size) if rank not in accounts]
    pairs = sorted(
        {
            (min(a, b), max(a, b))
            for a, account in accounts.items()
            for b in set(range(size)) - set(account["received"])
        }
    )
    for a, b in pairs:
        names = " and ".join(
            f"rank {rank} ({records[rank]['host']})" if rank in records else f"rank {rank}"
            for rank in (a, b)
        )
        yield SharedFinding(
            Finding("messages", f"none between {names} in {limit:g} s", False, ports(mpi))
        )
    if missing and not pairs:
        found = f"ranks {numbered(missing)} stopped responding"
        yield SharedFinding(Finding("messages", found, False, ports(mpi)))


def ports(mpi: str) -> str:
    """Returns the remedy if hosts cannot reach each other, for the MPI in use."""
    setting = {
        "MPICH": "UCX_TCP_PORT_RANGE=40000-41000 (FI_TCP_PORT_LOW_RANGE and _HIGH_ with libfabric)"
        " for the ranks, MPIEXEC_PORT_RANGE=40000:41000 for the launcher",
        "Open MPI": "--mca btl_tcp_port_min_v4 40000 --mca btl_tcp_port_range_v4 1000, or "
        "UCX_TCP_PORT_RANGE=40000-41000 where it uses UCX",
    }.get(mpi, "your MPI's range of ports")
    return (
        "A firewall between the hosts, or an interface that does not lead there. Open all TCP "
        f"ports between compute nodes, or a range and name it: {setting}. Name the interface: "
        "UCX_NET_DEVICES=eth0 (Open MPI also --mca btl_tcp_if_include eth0)."
    )


def links(figures: Sequence[Mapping[str, Any]], hosts: Sequence[str]) -> Iterator[SharedFinding]:
    """Reports the spread of all pairs, and each pair that is much slower than the others.

    A pair is slow if it has less than half the rate that a quarter of the pairs reach. The median
    would not do as a measure, since one slow host of three makes two of three pairs slow. Ranks of
    one host have no link between them: pairs on one socket are faster than others.
    """
    good = [f for f in figures if "error" not in f]
    for f in figures:
        if "error" in f:
            found = f"{_pair(f, hosts)}: {f['error']}"
            yield SharedFinding(
                Finding("link", found, False, "Look at this link's ports and interfaces.")
            )
    if not good:
        return
    rates = sorted(f["bytes_per_second"] for f in good)
    delays = sorted(f["latency_seconds"] for f in good)
    quarter = rates[int(0.75 * len(rates))]
    several = len({hosts[r] for f in good for r in f["pair"]}) > 1
    kind = "hosts" if several else "ranks of one host"
    found = f"{len(good)} pair{'s' * (len(good) > 1)} of {kind}: {_rates(rates)} Gbit/s, "
    found += f"{_spread([d * 1e6 for d in delays])} us"
    slow = [f for f in good if several and f["bytes_per_second"] < _SLOW * quarter]
    yield SharedFinding(Finding("links", found))
    for f in slow:
        found = f"{_pair(f, hosts)}: {f['bytes_per_second'] * 8e-9:.3g} Gbit/s, where others reach "
        found += f"{quarter * 8e-9:.3g}"
        remedy = (
            "Have this pair's cable, port and switch looked at (ethtool, ibstat: negotiated speed, "
            "errors), see which interface and route are used (ip route get), or leave the host out."
        )
        yield SharedFinding(Finding("slow link", found, False, remedy))


def _pair(figures: Mapping[str, Any], hosts: Sequence[str]) -> str:
    return " and ".join(f"rank {rank} ({hosts[rank]})" for rank in figures["pair"])


def _rates(rates: Sequence[float]) -> str:
    return _spread([rate * 8e-9 for rate in rates])


def _spread(values: Sequence[float]) -> str:
    if len(values) == 1:
        return _three(values[0])
    median = statistics.median(values)
    return f"{_three(values[0])} to {_three(values[-1])} (median {_three(median)})"


def _three(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def progress(figures: Sequence[Mapping[str, Any]]) -> Iterator[SharedFinding]:
    """Checks whether messages move while the program does something else."""
    shares = next((f["hidden"] for f in figures if "hidden" in f), None)
    if shares is None:
        return
    found = (
        f"{shares['nobody']:.0%} of a message hidden while nobody calls MPI, "
        f"{shares['a thread']:.0%} with a thread in the call, as jdaso has it"
    )
    if shares["a thread"] >= _PROGRESS:
        yield SharedFinding(Finding("progress of MPI", found))
        return
    remedy = (
        "Leave a core on each host free for MPI's thread: fewer ranks, or bind with more cores."
    )
    yield SharedFinding(Finding("progress of MPI", found, False, remedy))
