# Everything works from an empty clone, with Python 3.11 or newer, make, and a way to the package registries.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --timeout 60
BENCH ?= stream
VERSIONS ?= 14 15 16 17 18

# One worker has all tests that need Spark, the others have the rest, in whole files: see tests/lanes.py. Tests wait for
# servers and processes a good part of their time: three workers, where there are two cores.
WORKERS ?= 3
SIDE_BY_SIDE := -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Containers often set this variable. Tests start hundreds of Python processes, and each would compile every module again;
# every worker would rewrite the assertions of all tests again.
export PYTHONDONTWRITEBYTECODE :=

# The first that is new enough and can make a virtual environment. `make PYTHON=…` says which.
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3; do \
	$$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& echo $$python && break; done)

.DEFAULT_GOAL := help
.PHONY: help setup browser demo test test-deep test-image matrix coverage mutations soak lint format bench docs lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## the virtual environment, all packages as locked, Spark's jars; nothing when up to date

browser: ## Chromium, for the tests of the status page; installed only where there is none
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
		if test "$$(id -u)" = 0 && command -v apt-get >/dev/null; \
		then apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; \
		else echo "Chromium is missing; the tests of the status page will fail: apt-get install chromium" >&2; fi

demo: $(READY) ## Postgres under load, captured into live Spark tables; needs nothing else
	$(BIN)/penstock demo

test: lint browser ## lint, types, and the fast tier of tests: every feature, on real Postgres, Spark and Kafka
	$(BIN)/pytest $(SIDE_BY_SIDE) -m "not deep" --timeout 900 tests

test-deep: $(READY) browser ## the deep tier: kills, clusters, real Debezium, benchmarks, long random histories, Postgres 14 to 17
	$(BIN)/python -m tests.matrix --source $(filter-out 18,$(VERSIONS)) $(SIDE_BY_SIDE) || matrix=failed; \
		$(BIN)/pytest $(SIDE_BY_SIDE) -m "deep and not image" tests && test -z "$$matrix"

test-image: $(READY) ## build the image step by step on a clean Debian, and run the demo in it: ten minutes
	$(BIN)/pytest -m image tests/deploy

coverage: $(READY) browser ## line and branch coverage of both tiers; TIER=fast or TIER=deep for one
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(SIDE_BY_SIDE) $(if $(TIER),-m $(if $(filter fast,$(TIER)),"not deep",deep)) tests
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered

mutations: $(READY) ## break the code on purpose, one thing at a time, and show that the fast tier notices
	$(BIN)/python -m tests.mutations --keep-going

soak: $(READY) ## penstock run under load for half an hour: memory, files, threads and disk must stay flat; MINUTES=n
	$(BIN)/python -m tests.soak --connect --minutes $(or $(MINUTES),30)

matrix: $(READY) ## the tests that face Postgres, on each version that is supported; VERSIONS="14 16" chooses
	$(BIN)/python -m tests.matrix $(VERSIONS) $(SIDE_BY_SIDE)

lint: $(READY) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY) ## put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## a quick benchmark; BENCH=name chooses which
	$(BIN)/python -m bench $(BENCH) --quick

docs: $(READY) ## the documentation, into site/
	$(BIN)/zensical build --clean --strict

lock: ## choose versions anew: requirements.lock from pyproject.toml, and deploy/requirements.lock for images
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
		--no-emit-index-url --extra dev pyproject.toml --output-file requirements.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
		--no-emit-index-url --constraint requirements.lock pyproject.toml --output-file deploy/requirements.lock

clean: ## all that was made here; the cache in the home directory stays
	rm -rf $(VENV) site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .penstock .penstock-*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): requirements.lock pyproject.toml src/penstock/spark/jars.lock
	@test -n "$(PYTHON)" || { echo "Penstock needs Python 3.11 or newer, with venv; none was found." \
		"Install one (Debian: apt install python3 python3-venv), or say where it is: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "setting up $(VENV) with $(PYTHON); this takes a few minutes the first time"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	for pause in 5 20 -; do $(INSTALL) --require-hashes --requirement requirements.lock && break; \
		test $$pause != - && echo "this did not succeed; trying again" && sleep $$pause || exit 1; done
	$(INSTALL) --no-deps --no-build-isolation --editable .
	$(BIN)/penstock setup
	@touch $@
