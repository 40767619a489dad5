#!/bin/bash
# Trains with jdaso on 4 machines: one MPI rank (one jdaso "node") per machine, 4 GPUs each.
#
#   qsub examples/pbs.sh                       # the ResNet-50 example, on made-up images
#   qsub -l select=8:ncpus=32:mpiprocs=1:ngpus=4 -v TRAIN="python train.py" examples/pbs.sh
#
# To adapt: queue and account, ncpus, ngpus, modules, VENV. For PBS Professional and OpenPBS;
# Torque requests whole machines, with one line of the node file each, by `-l nodes=4:ppn=1:gpus=4 -n`.

#PBS -N jdaso
#PBS -l select=4:ncpus=32:mpiprocs=1:ngpus=4
#PBS -l place=scatter
#PBS -l walltime=04:00:00
#PBS -j oe

set -euo pipefail
cd "$PBS_O_WORKDIR" # PBS starts in the home folder

# The environment in which jdaso was installed. mpi4py loads whichever MPI it finds; mpi4jax, if it
# is used, is compiled against one: load here the module that was loaded when it was installed.
# On GPUs the environment needs JAX for CUDA (jax[cuda13]); without it JAX computes on CPUs.
# module load openmpi cuda
VENV=${VENV:-$PBS_O_WORKDIR/.venv}
source "$VENV/bin/activate"

# A line for each rank that `mpiprocs` requests. mpiexec is that of the MPI which mpi4py loads.
RANKS=$(wc -l <"$PBS_NODEFILE")
if [[ $(mpiexec --version 2>&1) =~ Open\ MPI|OpenRTE|PRRTE|prrte ]]; then
    # Otherwise it binds a rank to one core, shared by XLA, the data pipeline and the exchange's thread.
    LAUNCH=(mpiexec -n "$RANKS" --hostfile "$PBS_NODEFILE" --map-by ppr:1:node --bind-to none)
    LAUNCH+=(-x PATH -x VIRTUAL_ENV) # other hosts get no more than these: add what the program reads
else
    LAUNCH=(mpiexec -n "$RANKS" -f "$PBS_NODEFILE" -ppn 1) # MPICH and its derivatives
fi

read -r -a TRAIN <<<"${TRAIN:-python examples/resnet50_imagenet.py}"
echo "machines: $(sort -u "$PBS_NODEFILE" | xargs); launcher: ${LAUNCH[*]}; command: ${TRAIN[*]}"

# Before hours of training: do the ranks see each other? With a launcher that does not fit the
# MPI library each rank may start alone, in a world of size 1, and no error is raised.
"${LAUNCH[@]}" python -c '
import sys
from mpi4py import MPI

size, tasks = MPI.COMM_WORLD.Get_size(), int(sys.argv[1])
assert size == tasks, f"MPI sees {size} ranks, PBS gave {tasks}: mpiexec is of another MPI"
' "$RANKS"

# One failed rank ends the launch: mpiexec kills the others.
"${LAUNCH[@]}" "${TRAIN[@]}"
