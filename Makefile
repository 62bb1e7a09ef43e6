# Each target works alone on a fresh machine with make and Python 3.11 or newer:
# the first one creates .venv and installs into it, later ones find it ready.
# `demo` needs the program alone; the first of the others adds the development tools.

PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
PYTEST := $(PY) -m pytest -q -n 2
INSTALLED := $(VENV)/.installed
DEVELOP := $(VENV)/.installed-dev
EXECUTOR := $(VENV)/.installed-executor
COMPILED := $(VENV)/compiled/.installed
PIP_INSTALL := $(PY) -m pip install --quiet --constraint constraints.txt

.PHONY: demo test test-executor executor install lint ruff types layers compile perf fuzz laws validate executor-bench clean costs policies-by-workloads notebooks docs

demo: $(INSTALLED)
	$(VENV)/bin/batchscope demo

test: $(DEVELOP)
	$(PYTEST)

# Every shipped cost file and the roofline, fitted anew from the public tables (BATCHSCOPE_DATA) and compared.
costs: $(DEVELOP)
	BATCHSCOPE_ALL_COSTS=1 $(PYTEST) tests/test_calibrate_fit.py

# The executor's tests on the CPU. Once this has installed torch, `make test` runs them, too.
test-executor: $(EXECUTOR)
	OMP_NUM_THREADS=1 $(PYTEST) tests/executor

install: $(DEVELOP)

executor: $(EXECUTOR)

# The build backend goes in first, so that it too is the pinned one.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("batchscope needs Python 3.11 or newer; name one: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	@echo "installing into $(VENV) (about a minute)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP_INSTALL) hatchling
	@$(PIP_INSTALL) --no-build-isolation --editable .
	@touch $@

$(DEVELOP): $(INSTALLED)
	@echo "installing the development tools into $(VENV) (about a minute)"
	@$(PIP_INSTALL) --no-build-isolation --editable '.[dev]'
	@touch $@

# torch goes in by itself first, as pinned: nothing that follows may bring another build of it.
$(EXECUTOR): $(DEVELOP)
	@echo "installing torch, Triton and transformers into $(VENV) (some minutes, 2 GB)"
	@$(PIP_INSTALL) torch
	@$(PIP_INSTALL) --no-build-isolation --editable '.[dev,gpu,gguf]' transformers
	@touch $@

lint: ruff types layers

ruff: $(DEVELOP)
	$(VENV)/bin/ruff check

types: $(DEVELOP)
	$(VENV)/bin/mypy --strict

layers: $(DEVELOP)
	$(VENV)/bin/lint-imports

# The program as it runs fastest, in an environment of its own; built from a source distribution, because the compiler
# leaves its modules beside the sources. Without a C compiler this fails, and the program runs interpreted.
$(COMPILED): $(DEVELOP) $(shell find policies traces sim gpu_backend calibrate -name '*.py' -o -name '*.json')
	@command -v cc > /dev/null || { echo "no C compiler (cc) here: batchscope runs interpreted; time it with $(PY) -m tests.perf.run"; exit 1; }
	@echo "compiling (some two minutes)"
	@rm -rf $(VENV)/build $(VENV)/compiled
	@$(PY) -m hatchling build --target sdist --directory $(VENV)/build
	@HATCH_BUILD_HOOKS_ENABLE=1 $(PY) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir $(VENV)/build $(VENV)/build/*.tar.gz
	@$(PYTHON) -m venv $(VENV)/compiled
	@$(VENV)/compiled/bin/python -m pip install --quiet --constraint constraints.txt $(VENV)/build/*.whl
	@touch $@

compile: $(COMPILED)

# The slow checks, each opt-in.
perf: $(COMPILED)
	$(PY) -m tests.perf.run --program $(VENV)/compiled/bin/batchscope

# Simulated against measured on this CPU, and continuous against static batching; on a machine that does nothing else.
validate: $(EXECUTOR)
	OMP_NUM_THREADS=1 $(PY) -m calibrate.agreement

executor-bench: $(EXECUTOR)
	OMP_NUM_THREADS=1 $(PY) -m tests.perf.executor_bench

policies-by-workloads: $(DEVELOP)
	$(PY) -m tests.perf.policies_by_workloads --out docs/policies-by-workloads.md

# Runs every notebook and saves what it shows in it; the pictures of its figures need Chromium (BATCHSCOPE_CHROMIUM).
notebooks: $(DEVELOP)
	$(PY) -m tests.notebooks

# The documentation as a site: build/docs/index.html.
docs: $(DEVELOP)
	$(VENV)/bin/mkdocs build --strict

fuzz: $(DEVELOP)
	HYPOTHESIS_PROFILE=fuzz BATCHSCOPE_FUZZ=1 $(PYTEST) tests/fuzz

laws: $(DEVELOP)
	BATCHSCOPE_LAWS_REQUESTS=400000 $(PYTEST) -v -o faulthandler_timeout=0 tests/laws

clean:
	find policies traces sim gpu_backend calibrate -name '*.so' -delete
	rm -f *__mypyc.*.so
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find policies traces sim gpu_backend calibrate tests -name __pycache__ -type d -prune -exec rm -rf {} +
