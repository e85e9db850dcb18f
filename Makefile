# Every target sets up .venv by itself, and does so again only when a pyproject.toml or the constraints change.
#   make train          trains the quickstart       make test    runs the tests       make help    lists the rest
#
# PYTHON       the interpreter that the virtual environment is made with
# TORCH_INDEX  a package index to take torch from (say PyTorch's index of CPU builds); unset: the usual one
# JOBS         test processes
# ARGS         further arguments for pytest, or for amago-run train
# PACKAGES     what install-check checks: kernels nets envs agents runner; unset: all of them
# VERSIONS     of third-party packages in install-check: pinned, oldest (envs only) or newest
# WITH_PYTHON  Python version for install-check, such as 3.13; unset: the one of .venv

PYTHON ?= python3
TORCH_INDEX ?=
JOBS ?= 2
ARGS ?=
PACKAGES ?=
VERSIONS ?= pinned
WITH_PYTHON ?=

BIN := .venv/bin
PACKAGE_NAMES := kernels nets envs agents runner
PACKAGE_PATHS := $(PACKAGE_NAMES:%=packages/amago-%)
SOURCES := $(PACKAGE_PATHS:%=%/src)
INSTALLED := .venv/.installed

# Tools keep their files, and amago-kernels what it compiles, in the repository's build folder, not in the home folder.
export MPLCONFIGDIR := $(CURDIR)/build/home/matplotlib
export WANDB_CACHE_DIR := $(CURDIR)/build/home/wandb/cache
export WANDB_CONFIG_DIR := $(CURDIR)/build/home/wandb/config
export WANDB_DATA_DIR := $(CURDIR)/build/home/wandb/data
export AMAGO_KERNELS_CACHE := $(CURDIR)/build/home/amago-kernels
export TRITON_CACHE_DIR := $(CURDIR)/build/home/triton
export UV_CACHE_DIR := $(CURDIR)/build/home/uv
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# pip applies this one to the environments that it builds packages in, so none of them fetches a torch of its own.
export PIP_BUILD_CONSTRAINT := constraints.txt

# Each test process gets one thread: the tests' tensors are small, and threads of two processes get in each other's way.
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 WANDB_MODE=offline $(BIN)/pytest -n $(JOBS)

.DEFAULT_GOAL := help
.PHONY: help setup train train-control test test-all lint format types contracts lock-check lock pins \
	wheels install-check clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /  \1\t/' | expand -t 18

setup: $(INSTALLED)  ## .venv with the five packages (editable) and the development tools

# torch comes first and pinned: found installed, nothing later asks an index for a newer one.
$(INSTALLED): pyproject.toml constraints.txt $(PACKAGE_PATHS:%=%/pyproject.toml)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -qq -c constraints.txt 'pip>=25.1'
	$(BIN)/python -m pip install -qq -c constraints.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	$(BIN)/python -m pip install -qq -c constraints.txt --group dev $(PACKAGE_PATHS:%=-e %)
	touch $@

train: setup  ## train the quickstart: MetaFrozenLake, results in runs/quickstart
	$(BIN)/amago-run train --overwrite $(ARGS)

# The previous action and reward are one step of memory, and enough to adapt a little, so the control does not see them.
train-control: setup runs/quickstart/summary.json  ## the same without memory; draws both in docs/quickstart.png
	$(BIN)/amago-run train --overwrite --run-name quickstart-control \
		--traj-encoder ff --set FFTstepEncoder.hide_rl2s=True $(ARGS)
	$(BIN)/amago-run compare quickstart quickstart-control --out docs/quickstart.png

runs/quickstart/summary.json: | setup
	$(BIN)/amago-run train --overwrite $(ARGS)

test: setup  ## all tests but the long trainings and those for a GPU
	$(PYTEST) -m 'not slow and not gpu' $(ARGS)

test-all: setup  ## every test; those marked gpu skip where there is none
	$(PYTEST) $(ARGS)

lint: setup  ## ruff: rules and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup  ## mypy, strict, on the five packages, the scripts and the benchmarks
	$(BIN)/mypy $(SOURCES)
	$(BIN)/mypy scripts conftest.py benchmarks

contracts: setup  ## which package may import which
	$(PYTEST) -n 0 tests/install/test_import_contracts.py

lock-check: setup  ## uv.lock fits the pyproject files
	$(BIN)/uv lock --check

lock: setup  ## write uv.lock anew, for changed dependencies
	$(BIN)/uv lock

pins: setup  ## write constraints.txt anew from what is installed
	$(BIN)/python scripts/pin.py constraints.txt
	touch $(INSTALLED)

wheels: setup  ## the five wheels, in dist/
	$(BIN)/python scripts/check_installs.py --wheels-only

install-check: setup  ## each package alone in a clean environment, tested outside the repository
	$(BIN)/python scripts/check_installs.py --jobs $(JOBS) --versions $(VERSIONS) $(if $(WITH_PYTHON),--python $(WITH_PYTHON)) $(PACKAGES)

clean:  ## remove everything that was made here, .venv and runs/ excepted
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find packages scripts tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
