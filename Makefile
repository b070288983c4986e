# Everything a person does with a checkout. `make` lists it.
#
#   PYTHON=python3.12        another interpreter
#   TORCH_INDEX=URL          take torch from this index (a CPU-only build is 200 MB instead of 3 GB)
#   WORKSPACE=DIR            where runs keep their state

PYTHON      ?= python3.11
WORKSPACE   ?= workspace
TORCH_INDEX ?=
VENV        := .venv
comma       := ,
BIN         := $(VENV)/bin
PIP         := $(BIN)/python -m pip install --disable-pip-version-check --no-compile --retries 1 $(if $(PIP_DEFAULT_TIMEOUT),,--timeout 10) --constraint constraints.txt
UV          := $(BIN)/python -m uv pip install --python $(BIN)/python --no-config --no-build-isolation --constraint constraints.txt
INPUTS      := pyproject.toml constraints.txt
SLURM       := slurmctld slurmd slurm-client munge

# Bytecode is written at the first import and kept, whatever the user's settings: hundreds of processes import the same.
unexport PYTHONDONTWRITEBYTECODE
export PLINTH_WORKSPACE := $(WORKSPACE)
export PATH             := $(CURDIR)/$(BIN):$(PATH)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup setup-dev setup-test demo up up-full test test-fast test-core test-all mutation check docs locks images bench screenshots fuzz clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ---- set-up ---------------------------------------------------------------------------------------

setup: $(VENV)/.kernels ## create .venv and install Plinth (repeated when pins change)

setup-dev: $(VENV)/.setup-dev

# An environment without .setup is unfinished: it is created again, from the downloads that pip and uv keep.
define environment
	@"$(PYTHON)" -c 'import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null || \
	  { echo "PYTHON is '$(PYTHON)': expected Python 3.11, 3.12 or 3.13 with venv (Debian: apt-get install python3.11-venv), or name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@[ -e $(VENV)/.setup ] || { echo "creating $(VENV)"; $(call alive,"$(PYTHON)" -m venv --clear $(VENV)); } || $(stopped)
endef

# Run a command, with a line every five seconds: pip prints nothing while it unpacks torch, and uv nothing into a log. On
# a terminal, bars show the rest, so the line comes while the environment grows. Ctrl-C ends the command, not the advice.
define alive
trap : INT; \
	(trap 'kill $$!; exit' TERM; while kill -0 $$$$; do sleep 5 >/dev/null 2>&1 & wait $$!; \
	  now=$$(du -sm $(VENV) 2>/dev/null | cut -f1); \
	  [ -t 1 ] && [ "$$now" = "$$was" ] || echo "  $${now:-0} MB in $(VENV), in the end some 2,000 (with CUDA 7,000)"; was=$$now; \
	done 2>/dev/null) & alive=$$!; \
	{ $(1); }; status=$$?; kill $$alive; wait $$alive 2>/dev/null; (exit $$status)
endef

# pip's index and certificates serve uv, too. Without uv, pip does the same in minutes.
define install
	@[ ! -e $(VENV)/.setup ] || mv $(VENV)/.setup $(VENV)/.unfinished
	@index=$${PIP_INDEX_URL:-$$($(BIN)/python -m pip config get global.index-url 2>/dev/null)}; \
	[ -z "$$index" ] || export UV_DEFAULT_INDEX="$$index"; \
	[ -z "$$PIP_CERT" ] || export SSL_CERT_FILE="$${SSL_CERT_FILE:-$$PIP_CERT}"; \
	if $(BIN)/python -m uv --version >/dev/null 2>&1; then $(call alive,$(UV) $(1)); \
	else echo "uv is not available here: pip takes some minutes"; $(call alive,$(PIP) --no-build-isolation $(1)); fi || $(stopped)
	@[ ! -e $(VENV)/.unfinished ] || mv $(VENV)/.unfinished $(VENV)/.setup
	@touch $@
endef

stopped = { echo "set-up stopped; the reason is above. Expected: a package index that answers (HTTPS_PROXY or pip's index-url where one is needed), and 4 GB free in this folder (here: $$(df -Ph . | awk 'END { print $$4 }')) and in ~/.cache, which this user may write (UV_CACHE_DIR names another). Then run the same command again: it goes on with what is downloaded." >&2; exit 1; }

# DeepSpeed's build looks for torch, so torch and the build tools come first and builds are not isolated. pip takes torch,
# because uv does not read pip's own folders of wheels; uv then keeps the torch that is installed.
$(VENV)/.setup: $(INPUTS)
	$(environment)
	@echo "set-up 1 of 3: torch, build tools and uv"
	@{ $(call alive,$(PIP) torch setuptools wheel ninja packaging hatchling editables $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))); } || $(stopped)
	@$(PIP) --no-deps uv || :
	@echo "set-up 2 of 3: Plinth and what it needs, some 220 packages"
	$(call install,--editable '.[train$(comma)tasks]')

$(VENV)/.kernels: $(VENV)/.setup
	@echo "set-up 3 of 3: kernels, with gcc"
	@$(BIN)/python -m plinth_text.compiled plinth_text plinth plinth_audit plinth_lab
	@touch $@

$(VENV)/.setup-dev: $(VENV)/.kernels
	@echo "installing what the tests need"
	$(call install,--editable '.[train$(comma)dev]')

$(VENV)/.setup-peers: tests/peers.txt $(VENV)/.setup-dev
	$(call install,--no-deps --requirement tests/peers.txt)

$(VENV)/.setup-bench: $(VENV)/.setup-dev
	@echo "installing the peers that benchmarks run beside Plinth"
	$(call install,--editable '.[train$(comma)dev$(comma)bench]')

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

setup-test: $(VENV)/.setup-peers ## install test dependencies other than Python: a Chromium, a Slurm, groff, a Prometheus with Alertmanager, a PKCS#11 token, an Apache, a PostgreSQL
	$(call bring,Chromium,command -v chromium || command -v chromium-browser || command -v google-chrome,chromium)
	$(call bring,Slurm,command -v slurmctld && command -v slurmd && command -v sbatch && command -v munged,$(SLURM))
	$(call bring,groff,command -v groff,groff-base)
	$(call bring,Prometheus,command -v prometheus && command -v promtool,prometheus)
	$(call bring,Alertmanager,command -v prometheus-alertmanager && command -v amtool,prometheus-alertmanager)
	$(call bring,PKCS#11 token,command -v pkcs11-tool && command -v softhsm2-util,softhsm2 opensc)
	$(call bring,PostgreSQL,command -v initdb || ls /usr/lib/postgresql/*/bin/initdb,postgresql)
	$(call bring,mod_auth_openidc,test -e /usr/lib/apache2/modules/mod_auth_openidc.so,apache2 libapache2-mod-auth-openidc)

# ---- work -----------------------------------------------------------------------------------------

demo: setup ## run the whole pipeline on text of this machine
	@$(BIN)/plinth keys init --demo
	@$(BIN)/plinth run -r demo

up: setup ## serve Dagster, MLflow and the workspace pages on loopback
	@$(BIN)/plinth up

up-full: $(VENV)/.setup-dev ## trial installation with PostgreSQL, S3, TLS and logins; nothing is kept
	@$(BIN)/plinth up --full -r demo

screenshots: setup-test ## update README images from the last run of the workspace
	@$(BIN)/python docs/screenshots.py

bench: $(VENV)/.setup-bench ## run benchmarks against peer tools; results in tests/benchmarks/results/
	@set -e; for script in tests/benchmarks/bench_*.py; do echo "== $$script"; $(BIN)/python $$script; done

# ---- proof ----------------------------------------------------------------------------------------

check: $(VENV)/.setup-dev ## run linters, type checks and layer checks
	@$(BIN)/ruff check
	@$(BIN)/python -m tests.words.check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

# One module's tests stay in one process, so that what they share is made once. Many tests wait for servers and for
# processes of their own, so three at a time keep two cores busy; tests/conftest.py puts the longest modules first.
# Three test processes for two cores, each and what it starts on one thread: threads would wait for one another.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadscope --no-loadscope-reorder

test: setup-test check ## run checks and the test suite; thirteen minutes on two cores
	@$(PYTEST) -m "not exhaustive and not gpu" --durations 15

test-fast: $(VENV)/.setup-dev ## run quick tests; about six minutes
	@$(PYTEST)

test-all: setup-test check ## run exhaustive matrices and sweeps, then mutation tests
	@$(PYTEST) -m "not gpu" --durations 30 --hypothesis-profile thorough
	@$(MAKE) --no-print-directory test-core
	@$(MAKE) --no-print-directory mutation

test-core: $(VENV)/.setup-dev ## run core tests without the extension packages
	@rm -rf $(VENV)/core; OMP_NUM_THREADS=1 $(BIN)/python -m tests.without_ring $(VENV)/core

$(VENV)/.setup-mutation: $(VENV)/.setup-dev
	$(call install,--editable '.[train$(comma)dev$(comma)mutation]')

mutation: $(VENV)/.setup-mutation ## run mutation tests of comparisons; ONLY=area
	@$(BIN)/python -m tests.mutation.run $(addprefix --only ,$(ONLY))

$(VENV)/.setup-fuzz: $(VENV)/.setup-dev
	$(call install,atheris)

fuzz: $(VENV)/.setup-fuzz ## fuzz every parser and kernel; SECONDS_EACH=60
	@$(BIN)/python -m tests.fuzz.run $(or $(SECONDS_EACH),60)

locks: $(VENV)/.setup ## write image locks and bills of materials after pin changes
	@$(BIN)/python infra/images/lock.py

# By digest: a tag moves. Any other builder of OCI images takes the same arguments.
BUILDER ?= buildah bud --isolation chroot --format oci
images: ## build an image: KIND=control, worker, trainer or proxy; BASE=NAME@sha256:…; COMPILER=; BUILDER='docker build'
	@case "$(BASE)" in *@sha256:*) ;; *) echo "BASE is '$(BASE)': expected an image by digest, NAME@sha256:…" >&2; exit 1; esac
	@case "$(KIND)" in control|worker|trainer|proxy) ;; *) echo "KIND is '$(KIND)': expected control, worker, trainer or proxy" >&2; exit 1; esac
	@$(BUILDER) --build-arg BASE=$(BASE) $(if $(COMPILER),--build-arg COMPILER=$(COMPILER)) --build-arg KIND=$(KIND) --tag plinth-$(KIND) \
	  --file infra/images/$(if $(filter proxy,$(KIND)),proxy.)Containerfile .

$(VENV)/.setup-docs: $(VENV)/.setup
	@echo "installing what builds the site"
	$(call install,--editable '.[train$(comma)docs]')

docs: $(VENV)/.setup-docs ## write docs/recipe.md and docs/predicates/, and build docs/_build/html; broken links are errors
	@$(BIN)/python -m plinth.recipe.reference docs/recipe.md
	@$(BIN)/python docs/predicate_schemas.py
	@$(BIN)/python -m sphinx -E -W --keep-going -q -b html docs docs/_build/html
	@echo docs/_build/html/index.html

clean: ## remove .venv and caches; keep workspaces
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
