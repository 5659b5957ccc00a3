# Every command a newcomer needs. The environment is made on first use, in .venv, from pyproject.toml and constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export MPLBACKEND = Agg

.PHONY: help env demo test test-slow lint bench clean
help:           ## list the commands
	@grep -hE '^[a-z-]+: .*## |^[a-z-]+: *##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

env: $(STAMP)   ## create the environment
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "spatialgears needs Python 3.11 or newer; found %d.%d. Run: make PYTHON=/path/to/python3.11" % v[:2])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

demo: $(STAMP)  ## a simulated tissue: fit, reconstruct, score, report
	$(BIN)/gears demo

test: $(STAMP)  ## the fast tests, as CI runs them
	$(BIN)/python -m pytest -q -m "not slow"

test-slow: $(STAMP) ## the long forms
	$(BIN)/python -m pytest -q -m slow

lint: $(STAMP)  ## style and types
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests
	$(BIN)/mypy

bench: $(STAMP) ## our quick preset and the references on simulated tissue
	$(BIN)/gears bench quick

clean:          ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build dist
