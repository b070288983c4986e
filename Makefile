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
.PHONY: help setup setup-dev setup-test demo up up-full test test-fast test-all mutation check docs locks images bench screenshots fuzz clean

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
	@$(PIP) --no-build-isolation --editable '.[tasks]'
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

# Debian packages, where this user may install them; tests of what is missing are skipped by name.
define bring
	@if { $(2); } >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing $(1)"; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(3) >/dev/null; \
	else \
	  echo "no $(1) here: its tests will be skipped (sudo apt-get install $(3))" >&2; \
	fi
endef

setup-test: $(VENV)/.setup-dev ## what the tests need beside Python: a Chromium, a Slurm, groff, a Prometheus with Alertmanager, a PKCS#11 token, an Apache, a PostgreSQL
	$(call bring,Chromium,command -v chromium || command -v chromium-browser || command -v google-chrome,chromium)
	$(call bring,Slurm,command -v slurmctld && command -v slurmd && command -v sbatch && command -v munged,$(SLURM))
	$(call bring,groff,command -v groff,groff-base)
	$(call bring,Prometheus,command -v prometheus && command -v promtool,prometheus)
	$(call bring,Alertmanager,command -v prometheus-alertmanager && command -v amtool,prometheus-alertmanager)
	$(call bring,PKCS#11 token,command -v pkcs11-tool && command -v softhsm2-util,softhsm2 opensc)
	$(call bring,PostgreSQL,command -v initdb || ls /usr/lib/postgresql/*/bin/initdb,postgresql)
	$(call bring,mod_auth_openidc,test -e /usr/lib/apache2/modules/mod_auth_openidc.so,apache2 libapache2-mod-auth-openidc)

# ---- work -----------------------------------------------------------------------------------------

demo: setup ## run the whole pipeline on text that this machine already has
	@$(BIN)/plinth keys init --demo
	@$(BIN)/plinth run -r jobs/recipes/demo.yaml

up: setup ## Dagster and MLflow pages on loopback
	@$(BIN)/plinth up

up-full: $(VENV)/.setup-dev ## to try: the pages with PostgreSQL, S3, TLS and logins on this machine; nothing is kept
	@$(BIN)/plinth up --full -r jobs/recipes/demo.yaml

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
# Three test processes for two cores, each and what it starts on one thread: threads would wait for one another.
# Compiled modules are kept, whatever the user's settings: the suite starts hundreds of processes that import the same.
unexport PYTHONDONTWRITEBYTECODE
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadscope --no-loadscope-reorder

test: setup-test check ## checks and the suite: every part from end to end; half an hour on two cores
	@$(PYTEST) -m "not exhaustive and not gpu" --durations 15

test-fast: $(VENV)/.setup-dev ## the quick tests, some six minutes
	@$(PYTEST)

test-all: setup-test check ## the whole matrices and sweeps too, then changed comparisons
	@$(PYTEST) -m "not gpu" --durations 30
	@$(MAKE) --no-print-directory mutation

$(VENV)/.setup-mutation: $(VENV)/.setup-dev
	@$(PIP) --no-build-isolation --editable '.[dev,mutation]'
	@touch $@

mutation: $(VENV)/.setup-mutation ## change comparisons one at a time: do the mirrored tests notice? ONLY=area
	@$(BIN)/python -m tests.mutation.run $(addprefix --only ,$(ONLY))

$(VENV)/.setup-fuzz: $(VENV)/.setup-dev
	@$(PIP) atheris
	@touch $@

fuzz: $(VENV)/.setup-fuzz ## fuzz every parser and kernel; SECONDS_EACH=60
	@$(BIN)/python -m tests.fuzz.run $(or $(SECONDS_EACH),60)

locks: $(VENV)/.setup ## write the images' locks and bills of materials, when pins have changed
	@$(PIP) uv
	@$(BIN)/python infra/images/lock.py

# By digest: a tag moves. Any other builder of OCI images takes the same arguments.
BUILDER ?= buildah bud --isolation chroot --format oci
images: ## build an image: KIND=control, worker, trainer or proxy; BASE=NAME@sha256:…; BUILDER='docker build'
	@case "$(BASE)" in *@sha256:*) ;; *) echo "BASE is '$(BASE)': expected an image by digest, NAME@sha256:…" >&2; exit 1; esac
	@case "$(KIND)" in control|worker|trainer|proxy) ;; *) echo "KIND is '$(KIND)': expected control, worker, trainer or proxy" >&2; exit 1; esac
	@$(BUILDER) --build-arg BASE=$(BASE) --build-arg KIND=$(KIND) --tag plinth-$(KIND) \
	  --file infra/images/$(if $(filter proxy,$(KIND)),proxy.)Containerfile .

docs: $(VENV)/.setup ## write docs/recipe.md from the models
	@$(BIN)/python -m plinth.recipe.reference docs/recipe.md

clean: ## remove .venv and caches; workspaces stay
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
