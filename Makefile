# Each target works alone on a fresh machine with make and Python 3.11 or newer:
# the first one creates .venv and installs into it, later ones find it ready.

PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
PYTEST := $(PY) -m pytest -q -n 2
INSTALLED := $(VENV)/.installed

.PHONY: demo test install lint ruff types layers perf fuzz laws clean

demo: $(INSTALLED)
	$(VENV)/bin/batchscope demo

test: $(INSTALLED)
	$(PYTEST)

install: $(INSTALLED)

# The build backend goes in first, so that it too is the pinned one.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("batchscope needs Python 3.11 or newer; name one: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --constraint constraints.txt hatchling
	$(PY) -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	@touch $@

lint: ruff types layers

ruff: $(INSTALLED)
	$(VENV)/bin/ruff check

types: $(INSTALLED)
	$(VENV)/bin/mypy --strict

layers: $(INSTALLED)
	$(VENV)/bin/lint-imports

# The slow checks, each opt-in.
perf: $(INSTALLED)
	$(PY) -m tests.perf.run

fuzz: $(INSTALLED)
	HYPOTHESIS_PROFILE=fuzz BATCHSCOPE_FUZZ=1 $(PYTEST) tests/fuzz

laws: $(INSTALLED)
	BATCHSCOPE_LAWS_REQUESTS=400000 $(PYTEST) -v -o faulthandler_timeout=0 tests/laws

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find policies traces sim gpu_backend calibrate tests -name __pycache__ -type d -prune -exec rm -rf {} +
