# make demo | test | test-all | bench | lint | clean
#
# Each target sets up what it needs in .venv, once: the stamps .venv/.demo, .venv/.test and .venv/.bench say what is
# installed, and the next run uses no network. PYTHON=... picks the interpreter (3.10 or later).

VENV := .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?= -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
# What is imported is compiled to bytecode then, not all that is installed now.
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# Without bytecode on disk Hy would compile every .hy file again at every start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all bench lint clean
.DEFAULT_GOAL := demo

demo: $(VENV)/.demo
	@$(BIN)/hyad run examples/nist.hy

test: $(VENV)/.test
	@$(BIN)/python -m pytest -q $(PYTEST_ARGS)

# Every variant of those tests of which `make test` takes some.
test-all: $(VENV)/.test
	@$(BIN)/python -m pytest -q $(PYTEST_ARGS) --all

bench: $(VENV)/.bench
	@$(BIN)/python tests/bench/run.py

lint: $(VENV)/.test
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo "the files above need: $(BIN)/ruff format ."; exit 1; }

$(VENV)/.demo $(VENV)/.test: $(VENV)/.%: $(BIN)/python pyproject.toml
	@echo "setting up $(VENV) for make $* (once)"
	@$(PIP) install --no-compile -e '.[$*]'
	@touch $@

$(VENV)/.bench: $(BIN)/python pyproject.toml tests/bench/requirements.txt
	@echo "setting up $(VENV) for make bench (once)"
	@$(PIP) install --no-compile -e '.[demo]' -r tests/bench/requirements.txt
	@touch $@

$(BIN)/python:
	@for python in $(PYTHON) python3.11 python3.12 python3.13 python3.10 python3; do \
	  if $$python -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then \
	    $$python -m venv $(VENV) && exit 0; \
	    rm -rf $(VENV); exit 1; \
	  fi; \
	done; echo "hyad needs Python 3.10 or later; none found (make PYTHON=/path/to/python)" >&2; exit 1

clean:
	@rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	@find hyad macros codegen tests examples -name __pycache__ -type d -prune -exec rm -rf {} +
