# Tessera: everything a new machine needs is Python >= 3.11 and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
JOBS := $(shell nproc 2>/dev/null || echo 2)

.DEFAULT_GOAL := help
.PHONY: help install demo test test-grid test-slow test-browser peers lint format docs dist bench experiments-page tutorials clean

help: ## list these targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-10s %s\n", $$1, $$2}'

# constraints.txt pins every package to the versions the tests passed with. torch comes first: nothing may choose another.
# Where the index offers only builds for GPUs, point pip to one with CPU builds (PIP_INDEX_URL) to save gigabytes.
$(VENV)/.runtime: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Tessera needs Python >= 3.11; got $$($(PYTHON) --version). Set PYTHON=/path/to/python3.11."; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) --editable .
	@touch $@

$(VENV)/.installed: $(VENV)/.runtime
	$(PIP) --editable '.[dev]'
	@touch $@

install: $(VENV)/.installed ## create .venv and install Tessera with everything its tests need

demo: $(VENV)/.runtime ## train a small mosaic, let it read two novels and ask it for what is hidden in them (3 to 6 minutes)
	$(BIN)/tessera demo --output runs/demo

test: install ## run the test suite
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

test-grid: install ## run the longest tests, and the further cases of laws of which `make test` runs some
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m 'grid and not slow and not gpu and not browser'

test-slow: install ## run all of these and the slow tests as well
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m 'not gpu and not browser'

test-browser: install ## test the inspection page in Chromium (Debian: apt-get install chromium)
	$(BIN)/python -m pytest -m browser -rs

torture: install ## bad inputs, kills, full disks, two processes: all of tests/reliability (about an hour)
	TORTURE=50 $(BIN)/python -m pytest tests/reliability

peers: install ## run the tests of transformers, PEFT and entmax on ours: the table of docs/reliability.md
	$(BIN)/python -m tests.peers

lint: install ## check style, types, and that imports point one way
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

format: install ## format the code and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install ## measure speed beside other code: one table of ratios (under half an hour)
	$(BIN)/python -m benchmarks.run

experiments-page: install ## redraw figures and tables of results/, also in docs/experiments/
	$(BIN)/python -m tessera.papers.results

tutorials: install ## run the tutorials and write what their cells print into their pages (5 minutes)
	$(BIN)/python docs/tutorial_outputs.py

docs: install ## build the site into docs/_build/html, running its tutorials (5 minutes)
	$(BIN)/python -m sphinx -b html -W --keep-going docs docs/_build/html

dist: install ## build the source distribution and the wheel into dist/
	$(BIN)/python -m build --no-isolation --outdir dist

clean: ## remove the environment, caches, runs and what was built
	rm -rf $(VENV) runs build dist docs/_build *.egg-info .pytest_cache .hypothesis .ruff_cache .import_linter_cache .mypy_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
