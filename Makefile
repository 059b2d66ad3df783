# Set-up in two commands: `make serve` runs the service, `make test` checks it. `make help` lists the rest.
# Needs Python 3.11 or newer with venv, and make; PYTHON=python3.12 chooses another interpreter.

PYTHON ?= python3
GATHERND_SOAK ?= 100
PYTEST_ARGS ?=
PYTEST_PROCESSES ?=
AUDIT_ARGS ?=
BENCH_ARGS ?=

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --no-input
CLIENTS := .venv-clients
CUDA := .venv-cuda
DOCS := .venv-docs
TORCH := .venv-torch
CLUSTER := .venv-cluster
OTHER := .venv-other

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install generated serve check test test-all lint format types unit pytest pytest-all soak audit sbom openapi sync-client grpc-messages clients cluster cuda docs torch other-python bench lock build release clean

help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | sort | awk -F '\t' '{printf "  %-10s %s\n", $$1, $$2}'
	@echo '  Parts of soak, each under an hour on two cores: $(SOAK_PARTS)'

# The environment. A stamp says which lock an installation came from; one that lost its interpreter, or whose checkout
# moved (scripts and the editable installation hold its path), is made again in place.
ifneq ($(shell test "$$(cat $(VENV)/.checkout 2>/dev/null)" = "$(CURDIR)" && $(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo sound),sound)
.PHONY: $(VENV)/.checkout
endif
$(VENV)/.checkout:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is %d.%d: set PYTHON" % sys.version_info[:2])'
	@$(PY) -c '' 2>/dev/null || rm -f $(VENV)/bin/python*
	$(PYTHON) -m venv $(VENV)
	@rm -f $(VENV)/.stamp-*
	@printf '%s' "$(CURDIR)" > $@

# The client and the service come from the checkout, built by the locked build tool: pip resolves and fetches nothing.
EDITABLE := $(PIP) install -q --no-deps --no-build-isolation --editable ./clients/python --editable .
PROJECTS := clients/python/pyproject.toml pyproject.toml

$(VENV)/.stamp-runtime: requirements/runtime.lock requirements/build.lock $(PROJECTS) $(VENV)/.checkout
	$(PIP) install -q --require-hashes -r requirements/runtime.lock -r requirements/build.lock
	$(EDITABLE)
	@touch $@

$(VENV)/.stamp-dev: requirements/dev.lock requirements/build.lock $(PROJECTS) $(VENV)/.checkout
	$(PIP) install -q --require-hashes -r requirements/dev.lock -r requirements/build.lock
	$(EDITABLE)
	@touch $@

# On make's command line PORT and HOST beat GATHERND_PORT and GATHERND_HOST. In the environment PORT counts where
# GATHERND_PORT is not set; HOST there is what csh and zsh call the machine, and does not count.
on_command_line = $(filter command,$(firstword $(origin $(1))))
SERVE_FLAGS = $(if $(call on_command_line,HOST),--host $(HOST)) \
	$(if $(call on_command_line,PORT)$(if $(GATHERND_PORT),,$(PORT)),--port $(PORT))

install: $(VENV)/.stamp-dev ## The environment for development, which every other target but serve installs too

serve: $(VENV)/.stamp-runtime ## Install what is missing and serve on 127.0.0.1:8080 (PORT, HOST, every GATHERND_*)
	exec $(VENV)/bin/gathernd serve $(strip $(SERVE_FLAGS))

check: $(VENV)/.stamp-dev ## The fast part of test, under a minute: lint, format, types, the tests without a server
	@$(MAKE) --no-print-directory -j 2 --keep-going --output-sync=target lint types unit

test: $(VENV)/.stamp-dev ## Lint and the tests that need only Python, make and git, in four minutes; `check` and `test-all` check types
	@$(MAKE) --no-print-directory -j 2 lint pytest

test-all: $(VENV)/.stamp-dev clients cluster cuda other-python $(DOCS)/.stamp ## Everything but soak; needs the Debian packages that .ci/run installs, and skips nothing for want of them
	@$(MAKE) --no-print-directory -j 3 lint types pytest-all

lint: $(VENV)/.stamp-dev ## ruff check, ruff format --check
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

format: $(VENV)/.stamp-dev ## Mend what ruff can mend, and format
	-$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

types: $(VENV)/.stamp-dev ## mypy --strict
	$(PY) -m mypy --strict

UNIT := $(addprefix tests/,spec dispatch api server telemetry wire/test_json_write.py wire/test_npy.py \
	wire/test_safetensors.py project/test_layers.py memory/test_container_memory.py project/test_repository.py \
	client/test_sync_client.py app/test_settings.py project/test_reference_tables.py)
unit: $(VENV)/.stamp-dev
	$(PY) -m pytest -q $(UNIT)

# Several processes share the files of tests: many wait for servers that they start, or for time to pass.
PYTEST := $(PY) -m pytest --dist loadfile --no-loadscope-reorder -n
pytest: $(VENV)/.stamp-dev ## The tests with small seeded samples (PYTEST_ARGS, PYTEST_PROCESSES)
	$(PYTEST) $(or $(PYTEST_PROCESSES),4) $(PYTEST_ARGS)

pytest-all: $(VENV)/.stamp-dev clients cluster cuda other-python $(DOCS)/.stamp ## The tests with those marked slow
	GATHERND_TEST_ALL=1 GATHERND_REQUIRE_ALL=1 $(PYTEST) $(or $(PYTEST_PROCESSES),3) $(PYTEST_ARGS)

# Parts of soak, each less than an hour on two cores; `rest` is what is in no other. Where all samples are computed by
# one process, two share the tests.
SOAK_cluster := tests/cluster
SOAK_conformance := tests/conformance
SOAK_guarded := tests/kernels/test_guarded.py
SOAK_grpc := tests/grpc_api
SOAK_http := tests/http
SOAK_kernels := tests/kernels
SOAK_load := tests/http/test_tensors_load.py
SOAK_oip := tests/oip
SOAK_parity := tests/parity
SOAK_schemathesis := tests/http/test_schemathesis.py
SOAK_security := tests/security
SOAK_store := tests/store
SOAK_wire := tests/wire
SOAK_workers := tests/workers
SOAK_rest := tests
SOAK_PARTS := cluster conformance grpc guarded http kernels load oip parity schemathesis security store wire workers rest
SHARED_cluster := -n 2 --dist load
SHARED_conformance := -n 2 --dist load
SHARED_guarded := -n 2 --dist load
soak_paths = $(foreach part,$1,$(SOAK_$(part)))
soak_ignored = $(filter-out $(SOAK_$1),$(filter $(if $(filter rest,$1),%,%.py),$(call soak_paths,$(filter-out $1,$(SOAK_PARTS)))))
soak: $(addprefix soak-,$(or $(PART),$(SOAK_PARTS))) ## The tests with full counts, whole or in parts: PART=store (GATHERND_SOAK multiplies: 10 is a tenth)

soak-%: $(VENV)/.stamp-dev clients cluster cuda torch other-python $(DOCS)/.stamp
	$(if $(filter $*,$(SOAK_PARTS)),,$(error no part $*: there are $(SOAK_PARTS)))
	GATHERND_REQUIRE_ALL=1 GATHERND_SOAK=$(GATHERND_SOAK) $(PY) -m pytest --timeout=0 $(SHARED_$*) $(SOAK_$*) $(addprefix --ignore=,$(call soak_ignored,$*)) $(PYTEST_ARGS)

audit: $(VENV)/.stamp-dev ## Known vulnerabilities in the locks; asks an advisory service (AUDIT_ARGS go to pip-audit)
	$(PY) -m deploy.audit $(wildcard requirements/*.lock) -- $(AUDIT_ARGS)

sbom: $(VENV)/.stamp-dev ## Bills of materials: sbom.json, sbom-gpu.json
	$(PY) -m deploy.sbom requirements/runtime.lock > sbom.json
	$(PY) -m deploy.sbom requirements/gpu.lock > sbom-gpu.json

generated: openapi sync-client ## Write all that is made from the code: the OpenAPI file, the tables of settings, the blocking client
	$(PY) -m deploy.settings_tables

openapi: $(VENV)/.stamp-dev ## Write openapi/openapi.json
	$(VENV)/bin/gathernd openapi > openapi/openapi.json.new
	mv openapi/openapi.json.new openapi/openapi.json

sync-client: $(VENV)/.stamp-dev ## Write the blocking Python client from the asynchronous one
	$(PY) -m deploy.sync_client

# The compiler comes with KServe's SDK, which brings grpcio-tools.
grpc-messages: $(CLIENTS)/.stamp-kserve ## Write app/formats/grpc/messages/messages.pb from the .proto files beside it
	$(CLIENTS)/kserve/bin/python -m deploy.grpc_messages

# The generators of clients, for tests/clients, in an environment of their own; those in TypeScript where there is npm.
# And KServe's SDK, for tests/oip.
NPM_FILES := $(addprefix tests/clients/typescript/,package.json package-lock.json .npmrc)
clients: $(CLIENTS)/.stamp-python $(CLIENTS)/.stamp-kserve $(CLIENTS)/.stamp-triton $(CLIENTS)/.stamp-moto $(if $(shell command -v npm 2>/dev/null),$(CLIENTS)/.stamp-npm) ## What tests of clients need: the generators, the clients of KServe and Triton, moto

$(CLIENTS)/.stamp-python: requirements/clients.lock $(VENV)/.checkout
	$(PY) -m venv --clear $(CLIENTS)
	$(CLIENTS)/bin/python -m pip --disable-pip-version-check --no-input install -q --require-hashes -r $<
	@touch $@

# KServe's SDK in its own environment below that of the generators, which is cleared before. Nothing in it is compiled
# ahead, for it is imported once; the pip of the main environment installs, for a pip of its own would be one more.
$(CLIENTS)/.stamp-kserve: tests/oip/kserve/requirements.lock $(CLIENTS)/.stamp-python
	$(PY) -m venv --clear --without-pip $(CLIENTS)/kserve
	$(PIP) --python $(CLIENTS)/kserve/bin/python install -q --no-compile --no-deps --require-hashes -r $<
	@touch $@

# Triton's newest client, for tests/grpc_api, in the same way.
$(CLIENTS)/.stamp-triton: tests/oip/triton/requirements.lock $(CLIENTS)/.stamp-python
	$(PY) -m venv --clear --without-pip $(CLIENTS)/triton
	$(PIP) --python $(CLIENTS)/triton/bin/python install -q --no-compile --no-deps --require-hashes -r $<
	@touch $@

# A server of S3 for tests/imports, in the same way.
$(CLIENTS)/.stamp-moto: tests/imports/moto/requirements.lock $(CLIENTS)/.stamp-python
	$(PY) -m venv --clear --without-pip $(CLIENTS)/moto
	$(PIP) --python $(CLIENTS)/moto/bin/python install -q --no-compile --no-deps --require-hashes -r $<
	@touch $@

$(CLIENTS)/.stamp-npm: $(NPM_FILES) $(CLIENTS)/.stamp-python
	@mkdir -p $(CLIENTS)/npm
	cp $(NPM_FILES) $(CLIENTS)/npm
	cd $(CLIENTS)/npm && npm ci --silent
	@touch $@

# Not in the environment for development, which stays without CUDA: a compiler as a library, loaded by its path.
cuda: $(CUDA)/.stamp ## The compiler for the GPU kernel (NVRTC), which needs no GPU

$(CUDA)/.stamp: tests/kernels/nvrtc/requirements.lock $(VENV)/.checkout
	rm -rf $(CUDA) && mkdir $(CUDA)
	$(PIP) install -q --no-compile --no-deps --require-hashes --target $(CUDA) -r $<
	@touch $@

# MkDocs, and what the examples need: in an environment of their own, installed by the pip of the main one.
docs: $(DOCS)/.stamp ## The site of docs/ in build/site; a dead link or anchor is an error
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs build --strict --config-file docs/site/mkdocs.yml

$(DOCS)/.stamp: requirements/docs.lock $(VENV)/.checkout
	$(PY) -m venv --clear --without-pip $(DOCS)
	$(PIP) --python $(DOCS)/bin/python install -q --require-hashes -r $<
	@touch $@

# The environment for development once more, with another version of Python, where this machine has one.
other-python: $(VENV)/.checkout ## What tests with another Python need, where there is one
	@other=$$($(PY) -m tests.other_python) || exit 1; test -z "$$other" || \
		$(MAKE) --no-print-directory PYTHON="$$other" VENV=$(OTHER) $(OTHER)/.stamp-dev

# Ray, 400 MB: with the service in one environment, since Ray starts actors with the interpreter that asks.
cluster: $(CLUSTER)/.stamp ## The service with Ray, on which tests try clusters

$(CLUSTER)/.stamp: requirements/cluster.lock requirements/build.lock $(PROJECTS) $(VENV)/.checkout
	$(PY) -m venv --clear --without-pip $(CLUSTER)
	$(PIP) --python $(CLUSTER)/bin/python install -q --require-hashes -r requirements/cluster.lock -r requirements/build.lock
	$(PIP) --python $(CLUSTER)/bin/python install -q --no-deps --no-build-isolation --editable ./clients/python --editable .
	@touch $@

# Several gigabytes, for soak alone: the examples that train.
torch: $(TORCH)/.stamp ## torch, for the examples that train with it

$(TORCH)/.stamp: tests/examples/requirements-torch.txt $(VENV)/.checkout
	$(PY) -m venv --clear --without-pip $(TORCH)
	$(PIP) --python $(TORCH)/bin/python install -q -r $<
	@touch $@

bench: $(VENV)/.stamp-dev ## requests over HTTP beside the floor and an hour's work; start-up (needs wrk; BENCH_ARGS)
	$(PY) -m benchmarks.http requests $(BENCH_ARGS)
	$(PY) -m benchmarks.http start

# Universal locks: every platform and every Python from 3.11 on; hashes, no hosts. Pins stay where they fit;
# LOCK_ARGS=--upgrade takes the newest. The locks for development and for GPUs have the runtime lock's pins and more; that
# for development has gRPC and protobuf as the lock for users of gRPC has them.
# What the client needs is in them, the client itself is not: it is installed from the checkout.
COMPILE = $(PY) -m uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	--no-emit-index-url --no-emit-find-links --no-emit-package gathernd $(LOCK_ARGS)
lock: $(VENV)/.stamp-dev ## Write the lock files again (LOCK_ARGS=--upgrade)
	$(COMPILE) -o requirements/build.lock requirements/build.in
	$(COMPILE) -o requirements/runtime.lock pyproject.toml
	$(COMPILE) --extra gpu -c requirements/runtime.lock -o requirements/gpu.lock pyproject.toml
	$(COMPILE) --extra otel -c requirements/runtime.lock -o requirements/otel.lock pyproject.toml
	$(COMPILE) --extra cloud -c requirements/runtime.lock -o requirements/cloud.lock pyproject.toml
	$(COMPILE) --extra cluster -c requirements/runtime.lock -o requirements/cluster.lock pyproject.toml
	$(COMPILE) --extra grpc -c requirements/runtime.lock -o requirements/grpc.lock pyproject.toml
	$(COMPILE) --extra dev --extra otel --extra cloud --extra grpc -c requirements/cloud.lock -c requirements/grpc.lock -o requirements/dev.lock pyproject.toml
	$(COMPILE) -o requirements/clients.lock requirements/clients.in
	$(COMPILE) -o requirements/docs.lock requirements/docs.in clients/python/pyproject.toml
	$(COMPILE) -o tests/oip/kserve/requirements.lock tests/oip/kserve/requirements.in
	$(COMPILE) -o tests/oip/triton/requirements.lock tests/oip/triton/requirements.in
	$(COMPILE) -o tests/imports/moto/requirements.lock tests/imports/moto/requirements.in
	$(COMPILE) -c requirements/gpu.lock -o tests/kernels/nvrtc/requirements.lock tests/kernels/nvrtc/requirements.in

build: $(VENV)/.stamp-dev ## Wheels and source distributions of the client and the service, in dist/
	$(PY) -m build --no-isolation --outdir dist clients/python
	$(PY) -m build --no-isolation --outdir dist .

release: $(VENV)/.stamp-dev ## All that a release has, in dist/, and a check that it installs and serves by itself
	rm -rf dist
	@$(MAKE) --no-print-directory build
	$(PY) -m deploy.release dist

clean: ## Remove the environment and everything built
	rm -rf $(VENV) $(CLIENTS) $(CLUSTER) $(CUDA) $(DOCS) $(TORCH) $(OTHER) build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -rf clients/python/build clients/python/*.egg-info
	find app clients tests benchmarks deploy -name __pycache__ -type d -prune -exec rm -rf {} +
