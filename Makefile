# Two commands do all the set-up: `make demo` and `make test`. Everything is installed in .venv, once.

VENV   ?= .venv
BIN    := $(VENV)/bin
# A supported Python: python3 if it is 3.11 or 3.12, else one that says so in its name, else any newer one.
PYTHON ?= $(shell for p in python3 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null && echo $$p && exit; done; \
	python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo python3)
PIP     = $(BIN)/python -m pip --disable-pip-version-check install -qq
WORKERS ?= 2
# What takes long runs in continuous integration, and here by `make test SLOW=`.
SLOW ?= $(if $(filter true,$(CI)),,-m "not slow")
# Each test worker computes on one core: more threads only fight each other.
ONE_THREAD = OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
# Tests start many processes: without bytecode each would compile the package again, and pytest all tests.
BYTECODE = PYTHONDONTWRITEBYTECODE=

.PHONY: help demo test pytest lint format docs bench lock browser strace clean

help:
	@echo "make demo    install, measure the embedded model, print tables and write a report"
	@echo "make test    install what tests need, then lint, types and tests"
	@echo "make docs    build the documentation into site/"
	@echo "make bench   run the benchmarks that need nothing but minutes"
	@echo "make lint    ruff, mypy and the order of the folders"
	@echo "make format  put the code in our format"
	@echo "make clean   remove .venv and what was built"

demo: $(VENV)/.installed
	$(BIN)/dualscope run

# Lint and types take one core for a minute: the tests have the others meanwhile.
test: $(VENV)/.installed-dev browser strace
	@$(MAKE) --no-print-directory --jobs 2 lint pytest

pytest: $(VENV)/.installed-dev
	$(ONE_THREAD) $(BYTECODE) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(SLOW)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed-dev
	$(BIN)/mkdocs build --strict

# Those that need nothing but minutes of this machine; what each of the others needs is said in its first lines.
BENCHMARKS ?= startup prefix_cost

bench: $(VENV)/.installed-dev
	@for name in $(BENCHMARKS); do echo "== $$name"; $(BIN)/python -m benchmarks.$$name || exit 1; done

# In continuous integration the tests that look at the network's calls must run; elsewhere they skip without strace.
strace:
	@if [ "$(CI)" = true ] && ! command -v strace >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends strace; fi

# In continuous integration the browser tests must run; elsewhere they skip, and say so, where there is no Chromium.
browser:
	@if [ "$(CI)" = true ] && ! command -v chromium >/dev/null && ! command -v chromium-browser >/dev/null && \
		! command -v google-chrome >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; fi

# torch comes first and by its version, because its builds (CPU, CUDA) are different files under one version. All else
# must have one of the hashes of the locks.
$(VENV)/.installed: requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "dualscope needs Python 3.11 or newer; give one with make PYTHON=..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (a few minutes the first time)"
	@sed -n 's/^[# ]*\([A-Za-z0-9._-]*==[^ ]*\).*/\1/p' requirements.lock > $(VENV)/versions.txt
	$(PIP) --constraint $(VENV)/versions.txt torch
	$(PIP) --require-hashes --requirement requirements.lock
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements-dev.lock
	$(PIP) --require-hashes --requirement requirements.lock --requirement requirements-dev.lock
	@touch $@

lock: $(VENV)/.installed-dev
	$(BIN)/python .ci/lock.py

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
