# Every verb says what it does: `make help`. CI calls the same verbs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEPLOY := .venv-deploy
JOBS ?= 3# tests wait more than they compute: one file a process at a time

.DEFAULT_GOAL := help
.PHONY: help venv run demo-once test lint lint-deploy docs-reference format chaos bench bench-check bench-peers clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

venv: $(STAMP) ## Create .venv and install the locked dependencies and the package

# Installed anew when the project file or the lock changes.
$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$(PYTHON) must be Python 3.11 or newer; choose one with: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null \
	  || { echo "$(PYTHON) has no ensurepip, so it cannot make a venv. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

run: venv ## Run the demo: gateway, store and a GitHub double on this machine, until Ctrl-C
	$(BIN)/gateway demo

demo-once: venv ## Run every case of the demo once, one JSON object a line, and exit
	$(BIN)/gateway demo --once --json

test: venv ## Run all tests with coverage
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --cov --cov-report=term-missing:skip-covered

lint: venv ## Check style, types, import order, profiles, the reference and the files of deploy/
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/gateway profiles list > /dev/null
	$(BIN)/python docs/reference.py --check
	@$(MAKE) --no-print-directory lint-deploy

lint-deploy: venv $(DEPLOY)/.installed ## Check the files of deploy/, each with a tool of its kind
	BIN=$(DEPLOY)/bin PYTHON=$(BIN)/python deploy/lint

# The tools have an environment of their own: what they need is no business of the project's.
$(DEPLOY)/.installed: deploy/requirements.lock
	$(PYTHON) -m venv --clear $(DEPLOY)
	$(DEPLOY)/bin/python -m pip install --quiet --disable-pip-version-check -r deploy/requirements.lock
	@touch $@

docs-reference: venv ## Write docs/reference.md anew from the code
	$(BIN)/python docs/reference.py

format: venv ## Let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

chaos: venv ## Inject every fault many times under load, audit, print a table; ROUNDS=10 ENGINE=uvicorn
	$(BIN)/python -m tests.e2e.chaos --rounds $(or $(ROUNDS),10) --engine $(or $(ENGINE),hypercorn)

bench: venv ## Compare the product with its peers, interleaved: receive, dispatch, memory, start; PAIRS=5 (an hour)
	$(BIN)/python bench/receive.py --pairs $(or $(PAIRS),5)
	$(BIN)/python bench/dispatch.py
	$(BIN)/python bench/memory.py
	$(BIN)/python bench/index.py
	$(BIN)/python bench/triggers.py
	$(BIN)/python bench/predicates_agree.py
	$(BIN)/python bench/bytecode.py

bench-check: venv ## Fail where a ratio of the receive path is below its floor by more than its own spread
	$(BIN)/python bench/receive.py --check --pairs $(or $(PAIRS),5)

bench-peers: venv ## Install the peers that make bench compares with, below bench/peers
	npm install --prefix bench/peers --no-audit --no-fund
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --target bench/peers/python -r bench/peers/requirements.txt

clean: ## Remove the venv, caches and build output
	rm -rf $(VENV) $(DEPLOY) build dist .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
