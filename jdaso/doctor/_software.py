"""Checks of installed software: versions, imports, MPI and its thread level, mpi4jax."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata

from .._base.version import __version__
from ._findings import Finding
from ._machine import shared_memory
from ._probe import PartProgress

_MPI_NAMES = {
    "libmpi.so.12": "MPICH",
    "libmpi_cray.so.12": "Cray MPICH",
    "libmpi.so.40": "Open MPI",
}
"""Vendors by the library's name; MPICH's name is also that of Intel MPI and MVAPICH."""
_REBUILD = (
    "put this MPI's mpicc first on PATH, then "
    "pip install --force-reinstall --no-deps --no-cache-dir --no-binary mpi4jax mpi4jax (without "
    'a GPU with CUDA_PATH=/proc before it); or use Session(engine="mpi4py"), which needs no mpi4jax'
)


def installed(name: str) -> str | None:
    """Returns the version of a distribution, or None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def requirements(extra: str = "") -> dict[str, str]:
    """Returns the least version of each distribution that jdaso, or one of its extras, needs.

    Raises:
        ValueError: there is no such extra.
        PackageNotFoundError: jdaso is not installed; only its folder is there.
    """
    about = metadata.metadata("jdaso")
    known = sorted(about.get_all("Provides-Extra") or [])
    if extra and extra not in known:
        raise ValueError(f"jdaso has no extra {extra!r}; it has {', '.join(known)}.")
    wanted: dict[str, str] = {}
    for text in metadata.requires("jdaso") or []:
        what, _, marker = text.partition(";")
        found = re.search(r"extra\s*==\s*['\"]([^'\"]+)", marker)
        if (found[1] if found else "") != extra:
            continue
        name, inner, least = re.match(
            r"\s*([\w.-]+)\s*(?:\[([^]]*)\])?\s*(?:[>=]=\s*([\w.]+))?", what
        ).groups()  # pyright: ignore[reportOptionalMemberAccess]
        if name == "jdaso":
            for other in inner.split(","):
                wanted |= requirements(other.strip())
        else:
            wanted[name] = least or "0"
    return wanted


def older(version: str, least: str) -> bool:
    """Returns whether a version is below another, by their leading numbers."""
    return _numbers(version) < _numbers(least)


def _numbers(version: str) -> list[int]:
    found = re.match(r"[0-9.]*", version)
    return [int(part) for part in (found[0] if found else "").split(".") if part]


def software(own: PartProgress, gpus: Sequence[str], needed: Sequence[str]) -> Iterator[Finding]:
    """Yields all findings about installed software.

    Args:
        own: outcome of `_parts.try_own`.
        gpus: the GPUs that the driver shows.
        needed: extras that the user needs.
    """
    yield Finding("Python", ".".join(map(str, sys.version_info[:3])), alike=True)
    yield Finding("jdaso", __version__, alike=True)
    yield from _packages(own)
    yield _devices(own, gpus)
    yield from _mpi_library(own)
    yield _mpi4jax(own)
    yield _cuda_aware(own)
    yield from _extras(needed)


def _packages(own: PartProgress) -> Iterator[Finding]:
    try:
        wanted = requirements()
    except metadata.PackageNotFoundError:
        remedy = "pip install jdaso (or pip install -e . in its folder)."
        yield Finding("jdaso installed", "no, only its folder is on the path", False, remedy)
        wanted = dict.fromkeys(("jax", "jaxtyping", "mpi4py", "numpy", "optax", "scipy"), "0")
    for name, least in wanted.items():
        yield _package(name, least, "" if name in own.values else own.error(name))
    yield _package("jaxlib", "0", "")
    if "jdaso" not in own.values and all(name in own.values for name in ("jax", "numpy", "optax")):
        remedy = "Reinstall: pip install --force-reinstall --no-deps jdaso."
        yield Finding("jdaso's modules", f"not imported: {own.error('jdaso')}", False, remedy)


def _package(name: str, least: str, error: str) -> Finding:
    version = installed(name)
    install = f'pip install "{name}>={least}".' if least != "0" else f"pip install {name}."
    if version is None and importlib.util.find_spec(name) is None:
        return Finding(name, "not installed", False, install, True)
    version = version or "version unknown"
    if older(version, least) and version != "version unknown":
        return Finding(name, f"{version}, too old", False, install, True)
    if error:
        remedy = _mpi_remedy(error) if name == "mpi4py" else f"Reinstall it: {install}"
        return Finding(name, f"{version}, but it cannot be imported: {error}", False, remedy, True)
    return Finding(name, version, alike=True)


_MPI_MISSING = (
    'Install an MPI library, pip install "jdaso[mpich]", or load your site\'s MPI module; '
    "MPI4PY_LIBMPI=/path/to/libmpi.so names one."
)


def _mpi_remedy(error: str) -> str:
    """Returns the remedy if importing mpi4py failed, which also starts MPI."""
    short = [finding for finding in shared_memory() if not finding.ok]
    if short and ("SIGBUS" in error or "shm" in error):
        return f"Not the installation: {short[0].found}. See shared memory, below."
    return _MPI_MISSING


def _devices(own: PartProgress, gpus: Sequence[str]) -> Finding:
    about = own.values.get("devices")
    if about is None:
        remedy = (
            "Try python -c 'import jax; print(jax.devices())'; JAX_PLATFORMS=cpu leaves GPUs out."
        )
        return Finding("JAX devices", f"none: {own.error('devices')}", False, remedy)
    kinds = about["kinds"]
    counted = ", ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))
    if gpus and about["platform"] == "cpu":
        remedy = (
            'Install JAX for CUDA: pip install "jax[cuda13]" (or cuda12); or JAX_PLATFORMS=cpu.'
        )
        return Finding("JAX devices", f"{counted}, though there are GPUs", False, remedy)
    return Finding("JAX devices", f"{counted}, computing")


def _mpi_library(own: PartProgress) -> Iterator[Finding]:
    about = own.values.get("mpi4py")
    if about is None:
        return
    yield Finding("MPI library", f"{about['vendor']} {about['version']}", alike=True)
    remedy = (
        "jdaso calls MPI from its own thread. Do not lower mpi4py.rc.thread_level (or "
        "MPI4PY_RC_THREAD_LEVEL, MPI4PY_RC_THREADS), or use an MPI library built with threads."
    )
    multiple = about["thread"] == "MULTIPLE"
    found = about["thread"] if multiple else f"{about['thread']} instead of MULTIPLE"
    yield Finding("MPI thread level", found, multiple, "" if multiple else remedy)


def _mpi4jax(own: PartProgress) -> Finding:
    version, built = installed("mpi4jax"), own.values.get("mpi4jax built")
    if built is None:
        if "mpi4jax built" in own.values:
            return Finding("mpi4jax", "not installed; engine mpi4py does without", alike=True)
        return Finding("mpi4jax", f"not known: {own.error('mpi4jax built')}", False, _AFTER_MPI4PY)
    names = [_MPI_NAMES.get(name, name) for name in built["mpi"]]
    libraries = ", ".join(f"{n} ({lib})" for n, lib in zip(names, built["mpi"], strict=True))
    gpu = ", ".join(built["gpu"]) or "no GPU"
    found = f"{version}, built for {libraries or 'an unknown MPI'} and {gpu}"
    if "mpi4jax" in own.values:
        return Finding("mpi4jax", found, alike=True)
    if "mpi4py" not in own.values or "devices" not in own.values:
        return Finding("mpi4jax", f"{found}; not tried, since JAX or mpi4py fail", alike=True)
    library = own.values["mpi4py"]["vendor"]
    if names and library not in names:
        found += f", but MPI is {library}"
        return Finding("mpi4jax", found, False, f"It is built for another MPI: {_REBUILD}.", True)
    found += f", but it cannot be used: {own.error('mpi4jax')}"
    return Finding("mpi4jax", found, False, f"Build it anew: {_REBUILD}.", True)


_AFTER_MPI4PY = "Fix mpi4py first, then run the doctor again."


def _cuda_aware(own: PartProgress) -> Finding:
    found = own.values.get("CUDA-aware")
    if found == "not applicable":
        return Finding("CUDA-aware MPI", "not applicable: JAX has no GPU")
    if found == "works":
        return Finding("CUDA-aware MPI", "works, on 4 KB of a device; jdaso does not need it")
    if "mpi4py" not in own.values or "devices" not in own.values:
        return Finding("CUDA-aware MPI", "not tried, since JAX or mpi4py fail")
    why = found or own.error("CUDA-aware")
    return Finding(
        "CUDA-aware MPI", f"no; jdaso does not need it, it copies through the host ({why})"
    )


def _extras(needed: Sequence[str]) -> Iterator[Finding]:
    for extra in needed:
        what = f"extra {extra}"
        try:
            wanted = requirements(extra)
        except (ValueError, metadata.PackageNotFoundError) as error:
            yield Finding(what, f"unknown: {error}", False, "Correct --need.", True)
            continue
        missing = [
            f"{name} ({version}, needs {least})" if version else name
            for name, least in wanted.items()
            if (version := installed(name)) is None or older(version, least)
        ]
        found = f"missing: {', '.join(missing)}" if missing else "complete"
        remedy = f'pip install "jdaso[{extra}]".' if missing else ""
        yield Finding(what, found, not missing, remedy, True)
