# Every target creates .venv if needed, and updates it when a pyproject.toml or the constraints change.
#   make train    trains the quickstart       make test    runs the tests       make help    lists all targets
#
# PYTHON       interpreter for the virtual environment
# TORCH_INDEX  package index for torch, such as PyTorch's index of CPU builds; default: pip's index
# JOBS         number of test processes
# ARGS         additional arguments for pytest or amago-run train
# PACKAGES     packages for install-check: kernels nets envs agents runner; default: all
# VERSIONS     third-party versions for install-check: pinned, oldest (envs only) or newest
# WITH_PYTHON  Python version for install-check, such as 3.13; default: that of .venv

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
ENVS_VENV := .venv-envs
DOCS_VENV := .venv-docs
ENV_EXTRAS := popgym,babyai,metaworld,atari,retro,xland,gymnax,mujoco,dm-control,minari
# procgen2 and gym require older versions of packages than they need; gym3 needs cffi and imageio.
ENV_PACKAGES_NO_DEPS := procgen2 gym3 envpool gym gym-notices optree

# Caches and compiled kernels go to the build folder of the repository, not to the home folder.
export MPLCONFIGDIR := $(CURDIR)/build/home/matplotlib
export WANDB_CACHE_DIR := $(CURDIR)/build/home/wandb/cache
export WANDB_CONFIG_DIR := $(CURDIR)/build/home/wandb/config
export WANDB_DATA_DIR := $(CURDIR)/build/home/wandb/data
export AMAGO_KERNELS_CACHE := $(CURDIR)/build/home/amago-kernels
export MESA_SHADER_CACHE_DIR := $(CURDIR)/build/home/mesa
export TRITON_CACHE_DIR := $(CURDIR)/build/home/triton
export UV_CACHE_DIR := $(CURDIR)/build/home/uv
export UV_TOOL_DIR := $(CURDIR)/build/home/uv-tools
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Applies to pip's isolated build environments, so that none of them downloads torch.
export PIP_BUILD_CONSTRAINT := constraints.txt

# One thread per test process: the tensors in the tests are small, and more threads would compete for the cores.
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 WANDB_MODE=offline $(BIN)/pytest -n $(JOBS)

.DEFAULT_GOAL := help
.PHONY: help setup train train-control test test-all lint format types contracts lock-check lock pins \
	wheels dists install-check test-envs docs docs-serve docs-files clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /  \1\t/' | expand -t 18

setup: $(INSTALLED)  ## create .venv with the five packages (editable) and the development tools

# torch is installed first and pinned, so that no later step downloads another build.
$(INSTALLED): pyproject.toml constraints.txt $(PACKAGE_PATHS:%=%/pyproject.toml)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -qq -c constraints.txt 'pip>=25.1'
	$(BIN)/python -m pip install -qq -c constraints.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	$(BIN)/python -m pip install -qq -c constraints.txt --group dev $(PACKAGE_PATHS:%=-e %)
	touch $@

train: setup  ## train the quickstart (MetaFrozenLake) into runs/quickstart, or continue it
	$(BIN)/amago-run train $(or $(ARGS),--auto-resume)

# The previous action and reward are one step of memory, enough to adapt a little, so they are hidden from the control.
train-control: setup runs/quickstart/summary.json  ## train the quickstart without memory, plot both in docs/quickstart.png
	$(BIN)/amago-run train --run-name quickstart-control \
		--traj-encoder ff --set FFTstepEncoder.hide_rl2s=True $(or $(ARGS),--auto-resume)
	$(BIN)/amago-run compare quickstart quickstart-control --out docs/quickstart.png

runs/quickstart/summary.json: | setup
	$(BIN)/amago-run train $(or $(ARGS),--auto-resume)

test: setup  ## tests except long trainings and GPU tests
	$(PYTEST) -m 'not slow and not gpu' $(ARGS)

test-envs: $(ENVS_VENV)/.installed  ## test the builtin environments with their packages, in .venv-envs
	$(subst $(BIN),$(ENVS_VENV)/bin,$(PYTEST)) tests/environments $(ARGS)

# The packages of the environments require other versions than the development tools, so they have their own .venv.
$(ENVS_VENV)/.installed: constraints-envs.txt $(PACKAGE_PATHS:%=%/pyproject.toml)
	test -x $(ENVS_VENV)/bin/python || $(PYTHON) -m venv $(ENVS_VENV)
	$(ENVS_VENV)/bin/python -m pip install -qq -c constraints-envs.txt 'pip>=25.1'
	$(ENVS_VENV)/bin/python -m pip install -qq -c constraints-envs.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	$(ENVS_VENV)/bin/python -m pip install -qq -c constraints-envs.txt pytest pytest-xdist pytest-timeout cffi imageio \
		$(PACKAGE_PATHS:%=-e %) 'amago-envs[$(ENV_EXTRAS)]'
	$(ENVS_VENV)/bin/python -m pip install -qq -c constraints-envs.txt --no-deps $(ENV_PACKAGES_NO_DEPS)
	touch $@

test-all: setup  ## all tests; GPU tests are skipped without a GPU
	$(PYTEST) $(ARGS)

docs: setup $(DOCS_VENV)/.installed docs-files  ## build the documentation into site/; warnings and dead links are errors
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build
	@echo 'Documentation: site/index.html'

docs-serve: setup $(DOCS_VENV)/.installed docs-files  ## show the documentation at http://127.0.0.1:8000 while it is edited
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs serve --no-strict

docs-files: setup  # generated pictures and pages
	$(BIN)/python scripts/docs_tables.py
	$(BIN)/python scripts/docs_pictures.py

$(DOCS_VENV)/.installed: constraints-docs.txt
	test -x $(DOCS_VENV)/bin/python || $(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install -qq -c constraints-docs.txt 'pip>=25.1'
	$(DOCS_VENV)/bin/python -m pip install -qq -c constraints-docs.txt --group docs
	touch $@

lint: setup  ## ruff check and ruff format --check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup  ## apply ruff fixes and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup  ## mypy --strict on packages, scripts and benchmarks
	$(BIN)/mypy $(SOURCES)
	$(BIN)/mypy scripts conftest.py benchmarks

contracts: setup  ## check which package imports which
	$(PYTEST) -n 0 tests/install/test_import_contracts.py

lock-check: setup  ## check that uv.lock matches the pyproject files
	$(BIN)/uv lock --check

lock: setup  ## update uv.lock
	$(BIN)/uv lock

pins: setup $(ENVS_VENV)/.installed $(DOCS_VENV)/.installed  ## write the installed versions to the constraints files
	$(BIN)/python scripts/pin.py constraints.txt
	$(ENVS_VENV)/bin/python scripts/pin.py constraints-envs.txt
	$(DOCS_VENV)/bin/python scripts/pin.py constraints-docs.txt
	touch $(INSTALLED) $(ENVS_VENV)/.installed $(DOCS_VENV)/.installed

wheels: setup  ## build the five wheels into dist/
	$(BIN)/python scripts/check_installs.py --wheels-only

dists: setup  ## build sdists and wheels into dist/ and check them, as for a release
	$(BIN)/python scripts/build_dists.py

install-check: setup  ## test each package alone, from its wheel, in a clean environment
	$(BIN)/python scripts/check_installs.py --jobs $(JOBS) --versions $(VERSIONS) $(if $(WITH_PYTHON),--python $(WITH_PYTHON)) $(PACKAGES)

clean:  ## remove build files and caches; keeps .venv and runs/
	rm -rf build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find packages scripts tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
