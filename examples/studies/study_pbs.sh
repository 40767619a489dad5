#!/bin/bash
# Runs a study on the nodes of a PBS job, one launch per cell; queued again, it continues.
#
#   qsub examples/studies/study_pbs.sh                  # examples/studies/cluster.toml
#   qsub -l select=8:ncpus=8:mpiprocs=1 -v STUDY=my.toml,OUT=mine examples/studies/study_pbs.sh
#
# The job needs as many nodes as the largest cell. If killed or out of time, it loses the running
# launch but no row: the same qsub continues with the next one.
# To adapt: queue and account, ncpus, walltime, modules, VENV. For PBS Professional and OpenPBS;
# Torque requests nodes with `-l nodes=4:ppn=8`.

#PBS -N jdaso-study
#PBS -l select=4:ncpus=8:mpiprocs=1
#PBS -l place=scatter:excl
#PBS -l walltime=04:00:00
#PBS -r y
#PBS -j oe

set -euo pipefail
cd "$PBS_O_WORKDIR" # PBS starts in the home folder

# The environment in which jdaso was installed, and the module of the MPI that its mpi4py loads.
# module load mpich  # the MPI that the study names as its library
VENV=${VENV:-$PBS_O_WORKDIR/.venv}
source "$VENV/bin/activate"

STUDY=${STUDY:-examples/studies/cluster.toml}
OUT=${OUT:-studies/cluster}
read -r -a OPTIONS <<<"${OPTIONS:-}" # more options of the study, such as --short or --again
# In place of this shell, so that the signals of PBS reach the study itself.
exec python -m jdaso study "$STUDY" --out "$OUT" "${OPTIONS[@]}"
