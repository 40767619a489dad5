"""The tables ``[fabrics]``, ``[libraries]`` and ``[workloads]`` of a declaration, read and checked.

A fabric or library that has no table is only a name: the machine's own, in its environment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from .._emulate.cluster import bits_per_second_of
from . import checks
from .checks import StudyError
from .factors import COMMON, FACTORS, READS, SETTINGS

EMULATED_INTERFACE = "eth0"
TRANSPORTS = ("mpi", "mpi4jax", "gloo", "nccl", "torch")
"""Programs that carry a library's operations: mpi4py, mpi4jax in compiled steps, JAX's own
processes over gloo or NCCL, PyTorch's processes over gloo."""

Chosen = TypeVar("Chosen")


@dataclass(frozen=True)
class ChosenFabric:
    """A fabric, and the variables and interfaces that select it.

    Attributes:
        name: of the fabric.
        rate: of the links of emulated hosts, such as "1gbit"; empty for a real fabric.
        interface: names of the interfaces that its bytes cross (``ib0``, or ``mlx5_0:1`` for a port
            of /sys/class/infiniband); none: a real fabric without proof.
        environment: variables of its ranks that select it.
        hosts: hosts of the ranks; none: this machine's, or those of the allocation.
        check: whether to measure emulated links first.
    """

    name: str
    rate: str = ""
    interface: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()
    check: bool = True


@dataclass(frozen=True)
class ChosenLibrary:
    """A communication library, and the environment that has it.

    Attributes:
        name: of the library.
        python: the interpreter of its environment; empty: the one that runs the study.
        transport: one of `TRANSPORTS`; by default the library's name, or "mpi".
        environment: variables of its ranks.
    """

    name: str
    python: str = ""
    transport: str = "mpi"
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ChosenWorkload:
    """A workload, and its settings in all cells.

    Attributes:
        name: of the workload.
        reads: factors that it reads besides the common ones.
        program: a Python file that the ranks run; empty: jdaso's own of this name.
        settings: passed on to the program.
    """

    name: str
    reads: tuple[str, ...]
    program: str = ""
    settings: Mapping[str, int | float | str] = field(default_factory=dict)


def fabrics(declared: Any) -> dict[str, ChosenFabric]:
    """Returns the fabrics that a table declares, by name.

    Raises:
        StudyError: one of them is invalid.
    """
    return {name: fabric(name, table) for name, table in _tables("fabrics", declared)}


def fabric(name: str, table: Mapping[str, Any] = MappingProxyType({})) -> ChosenFabric:
    """Returns the fabric of a table; without one, the machine's own."""
    where = f"fabrics.{name}"
    checks.refuse_unknown(where, table, ("rate", "interface", "environment", "hosts", "check"))
    rate = checks.typed(f"{where}.rate", table.get("rate", ""), str)
    hosts = checks.texts(f"{where}.hosts", table.get("hosts", []))
    interface = checks.texts(f"{where}.interface", table.get("interface", []))
    if rate:
        try:
            bits_per_second_of(rate)
        except ValueError as error:
            raise StudyError(f"{where}: {error}") from None
        if hosts:
            raise StudyError(f"{where} has a rate and hosts, got {list(hosts)}. Leave one out.")
        interface = interface or (EMULATED_INTERFACE,)
    return ChosenFabric(
        name=name,
        rate=rate,
        interface=interface,
        environment=checks.environment(f"{where}.environment", table.get("environment", {})),
        hosts=hosts,
        check=checks.typed(f"{where}.check", table.get("check", True), bool),
    )


def libraries(declared: Any) -> dict[str, ChosenLibrary]:
    """Returns the libraries that a table declares, by name.

    Raises:
        StudyError: one of them is invalid.
    """
    return {name: library(name, table) for name, table in _tables("libraries", declared)}


def library(name: str, table: Mapping[str, Any] = MappingProxyType({})) -> ChosenLibrary:
    """Returns the library of a table; without one, that of this environment."""
    where = f"libraries.{name}"
    checks.refuse_unknown(where, table, ("python", "transport", "environment"))
    own = name if name in TRANSPORTS else "mpi"
    return ChosenLibrary(
        name=name,
        python=checks.typed(f"{where}.python", table.get("python", ""), str),
        transport=checks.one_of(f"{where}.transport", table.get("transport", own), TRANSPORTS),
        environment=checks.environment(f"{where}.environment", table.get("environment", {})),
    )


def workloads(declared: Any) -> dict[str, ChosenWorkload]:
    """Returns jdaso's own workloads, and those that a table declares, by name.

    Raises:
        StudyError: one of them is invalid.
    """
    own = {name: ChosenWorkload(name, READS[name], settings=SETTINGS[name]) for name in READS}
    return own | {name: _workload(name, table) for name, table in _tables("workloads", declared)}


def _workload(name: str, table: Mapping[str, Any]) -> ChosenWorkload:
    where = f"workloads.{name}"
    if "program" not in table:
        checks.one_of(f"{where} (a workload of your own needs a program)", name, READS)
        return ChosenWorkload(name, READS[name], settings=_own_settings(where, name, table))
    program = checks.typed(f"{where}.program", table["program"], str)
    reads = checks.texts(f"{where}.reads", table.get("reads", []))
    for factor in reads:
        checks.one_of(f"{where}.reads", factor, [one for one in FACTORS if one not in COMMON])
    rest = {key: value for key, value in table.items() if key not in ("program", "reads")}
    for key, value in rest.items():
        if not isinstance(value, int | float | str):
            raise StudyError(f"{where}.{key} must be a number or a text, got {value!r}. Give one.")
    return ChosenWorkload(name, reads, program, rest)


def _own_settings(where: str, name: str, table: Mapping[str, Any]) -> dict[str, int | float]:
    defaults = SETTINGS[name]
    checks.refuse_unknown(where, table, defaults)
    settings = dict(defaults)
    for key, value in table.items():
        settings[key] = checks.typed(f"{where}.{key}", value, type(defaults[key]))
        checks.at_least(f"{where}.{key}", settings[key], 0 if key in _MAY_BE_ZERO else 1)
    for key, limit in _AT_MOST.items():
        if key in settings:
            most = settings[limit] if isinstance(limit, str) else limit
            checks.at_most(f"{where}.{key}", settings[key], most)
    if (count := settings.get("fragments")) and settings["sync_every"] % count:
        raise StudyError(
            f"{where}: sync_every={settings['sync_every']} is no multiple of fragments={count}. "
            "Give one that is."
        )
    return settings


_MAY_BE_ZERO = ("warmup", "step_seconds", "delay", "fragments", "image")
_AT_MOST: Mapping[str, str | int] = {
    "delay": "sync_every",
    "fragments": "sync_every",
    "tokens": 1024,
}
"""Setting -> its largest value, or the setting with that value."""


def used(
    factor: str, tables: Mapping[str, Chosen], names: Collection[str], make: Callable[[str], Chosen]
) -> dict[str, Chosen]:
    """Returns what cells name; where a study has no table of that kind at all, a bare name will do.

    Raises:
        StudyError: there are tables, but none of that name.
    """
    if not tables:
        return {name: make(name) for name in names}
    return {checks.one_of(factor, name, tables): tables[name] for name in names}


def _tables(where: str, declared: Any) -> list[tuple[str, dict[str, Any]]]:
    tables = checks.typed(where, declared, dict)
    return [(name, checks.typed(f"{where}.{name}", one, dict)) for name, one in tables.items()]
