# Every command a newcomer needs. The environment is made on first use, in .venv, from pyproject.toml and requirements.lock.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS := .venv-docs
PIP := -m pip --disable-pip-version-check --quiet install
export MPLBACKEND = Agg

.PHONY: help env demo test test-slow lint bench docs lock clean
help:           ## list the commands
	@grep -hE '^[a-z-]+: .*## |^[a-z-]+: *##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

env: $(STAMP)   ## create the environment
$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "spatialgears needs Python 3.11 or newer; found %d.%d. Run: make PYTHON=/path/to/python3.11" % v[:2])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) -c requirements.lock -e ".[dev]"
	@touch $@

demo: $(STAMP)  ## a simulated tissue: fit, reconstruct, score, report
	$(BIN)/gears demo

test: $(STAMP)  ## the fast tests, as CI runs them
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "not slow" -n auto --maxprocesses 4

test-slow: $(STAMP) ## the long forms, with counts: kills, cases, faults, shuffles
	$(BIN)/python -m pytest -q -m slow

lint: $(STAMP)  ## style and types
	$(BIN)/ruff check src tests docs
	$(BIN)/ruff format --check src tests
	$(BIN)/mypy

bench: $(STAMP) ## our quick preset and the references on simulated tissue
	$(BIN)/gears bench quick

docs: $(DOCS)/.installed ## the documentation, its tutorials executed, in docs/_build/html
	PATH="$(CURDIR)/$(DOCS)/bin:$$PATH" $(DOCS)/bin/python -m sphinx --fail-on-warning --keep-going -b html docs docs/_build/html
$(DOCS)/.installed: pyproject.toml requirements.lock
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python $(PIP) -c requirements.lock -e ".[docs]"
	@touch $@

lock:           ## write requirements.lock anew: the newest versions that constraints.txt allows
	rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python $(PIP) -c constraints.txt -e ".[dev,docs]"
	sed -n '/^#/p' requirements.lock > .venv-lock/requirements.lock
	.venv-lock/bin/python -m pip freeze --all --exclude-editable --exclude pip | sed -E 's/\+[a-z0-9.]+$$//' \
		| tr 'A-Z_' 'a-z-' | LC_ALL=C sort >> .venv-lock/requirements.lock
	mv .venv-lock/requirements.lock requirements.lock && rm -rf .venv-lock

clean:          ## remove the environments and caches
	rm -rf $(VENV) $(DOCS) .pytest_cache .mypy_cache .ruff_cache build dist docs/_build
