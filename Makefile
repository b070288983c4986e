# Everything a person does with a checkout. `make` lists it.
#
#   PYTHON=python3.12        another interpreter
#   TORCH_INDEX=URL          take torch from this index (a CPU-only build is 200 MB instead of 3 GB)
#   WORKSPACE=DIR            where runs keep their state

PYTHON      ?= python3.11
WORKSPACE   ?= workspace
TORCH_INDEX ?=
VENV        := .venv
BIN         := $(VENV)/bin
PIP         := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
# What was installed, as bytecode: on all cores, where pip would use one; a template that is no Python is no matter.
COMPILE     := $(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null 2>&1 || :
INPUTS      := pyproject.toml constraints.txt
SLURM       := slurmctld slurmd slurm-client munge

export PLINTH_WORKSPACE := $(WORKSPACE)
export PATH             := $(CURDIR)/$(BIN):$(PATH)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup setup-dev setup-test demo up test test-fast check docs bench screenshots fuzz clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ---- set-up ---------------------------------------------------------------------------------------

setup: $(VENV)/.setup ## make .venv and install Plinth into it (once; again when pins change)

setup-dev: $(VENV)/.setup-dev

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "no $(PYTHON) here: install Python 3.11, or say PYTHON=… (3.11 or 3.12)" >&2; exit 1; }
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# DeepSpeed's build looks for torch, so torch and the build tools come first and builds are not isolated.
$(VENV)/.setup: $(INPUTS) | $(BIN)/python
	@echo "installing torch and build tools (1 of 2)"
	@$(PIP) torch setuptools wheel ninja packaging hatchling editables $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
	@$(COMPILE)
	@echo "installing Plinth and what it needs, some minutes (2 of 2)"
	@$(PIP) --no-build-isolation --editable .
	@$(COMPILE)
	@touch $@

$(VENV)/.setup-dev: $(VENV)/.setup
	@echo "installing what the tests need"
	@$(PIP) --no-build-isolation --editable '.[dev]'
	@$(COMPILE)
	@touch $@

$(VENV)/.setup-bench: $(VENV)/.setup-dev
	@echo "installing the peers that benchmarks run beside Plinth"
	@$(PIP) --no-build-isolation --editable '.[dev,bench]'
	@touch $@

setup-test: $(VENV)/.setup-dev ## what the tests need beside Python: a Chromium, a Slurm
	@if command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing chromium"; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; \
	else \
	  echo "the browser tests need Chromium and this user cannot install it: sudo apt-get install chromium" >&2; exit 1; \
	fi
	@if command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v sbatch >/dev/null && command -v munged >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing slurm"; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(SLURM) >/dev/null; \
	else \
	  echo "the tests of the Slurm launcher need root and Slurm: sudo apt-get install $(SLURM)" >&2; exit 1; \
	fi

# ---- work -----------------------------------------------------------------------------------------

demo: setup ## run the whole line on text that this machine already has
	@$(BIN)/plinth run -r jobs/recipes/demo.yaml

up: setup ## Dagster and MLflow pages on loopback
	@$(BIN)/plinth up

screenshots: setup-test ## renew the README's pictures from the workspace's last run
	@$(BIN)/python docs/screenshots.py

bench: $(VENV)/.setup-bench ## measure, beside the peers; results in tests/benchmarks/results/
	@set -e; for script in tests/benchmarks/bench_*.py; do echo "== $$script"; $(BIN)/python $$script; done

# ---- proof ----------------------------------------------------------------------------------------

check: $(VENV)/.setup-dev ## lint, types, layers
	@$(BIN)/ruff check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

# One module's tests stay in one process, so that what they share is made once. Many tests wait for servers and for
# processes of their own, so three at a time keep two cores busy; tests/conftest.py puts the longest modules first.
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadscope --no-loadscope-reorder

test: setup-test check ## everything: checks and the whole suite
	@$(PYTEST) -m "" --durations 15

test-fast: $(VENV)/.setup-dev ## the quick tests, some three minutes
	@$(PYTEST)

$(VENV)/.setup-fuzz: $(VENV)/.setup-dev
	@$(PIP) atheris
	@touch $@

fuzz: $(VENV)/.setup-fuzz ## fuzz every parser and kernel; SECONDS_EACH=60
	@$(BIN)/python -m tests.fuzz.run $(or $(SECONDS_EACH),60)

docs: $(VENV)/.setup ## write docs/recipe.md from the models
	@$(BIN)/python -m plinth.recipe.reference docs/recipe.md

clean: ## remove .venv and caches; workspaces stay
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
