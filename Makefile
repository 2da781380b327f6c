# Every target sets up what it needs: on a machine with Python 3.11 or newer, `make demo` or `make test` is enough.

# the last line of `make demo` is its JSON object, also when another make calls this one
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
EXTRAS := train,serve,load,dev,valkey,experiments,kernels-cpu
FOLDERS := contracts events foundation precompute student_models serving loadtests

# The first Python that is new enough; PYTHON=/path/to/python overrides it.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	if $$p -c '$(NEW_ENOUGH)' 2>/dev/null; then echo $$p; break; fi; done)

# synthetic needs no download; kuairand reads KUAIRAND_DIR; smoke is the synthetic world at its smallest
DATA ?= synthetic
OUT ?= runs/$(DATA)
# the server that `make load` asks
HOST ?= http://127.0.0.1:8000

.DEFAULT_GOAL := help
.PHONY: help setup demo results test check serve load clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(INSTALLED)  ## create .venv and install everything into it (done once, redone when the pins change)

$(INSTALLED): pyproject.toml constraints.txt
	@$(if $(PYTHON),$(PYTHON),false) -c '$(NEW_ENOUGH)' 2>/dev/null || { \
		echo "error: GEM needs Python 3.11 or newer; install it, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'installing into $(VENV): takes a minute or more'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

demo: $(INSTALLED)  ## the whole chain, ending in one ranked request: DATA=synthetic (default), kuairand (KUAIRAND_DIR=...) or smoke
	@$(BIN)/python -m scripts.demo --data $(DATA) --out $(OUT)

results: $(INSTALLED)  ## every experiment behind a number in the README: both demos and all experiments, hours of work (KUAIRAND_DIR=...)
	$(BIN)/python -m scripts.demo --data synthetic --out runs/synthetic --record results/demo_synthetic.json
	$(BIN)/python -m scripts.demo --data kuairand --out runs/kuairand --record results/demo_kuairand.json
	for name in quality unification architecture scaling speed; do $(BIN)/python -m foundation.experiments $$name || exit; done

test: $(INSTALLED)  ## all tests, with coverage
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder \
		--cov --cov-report=term:skip-covered

check: $(INSTALLED)  ## style, types, import rules, spelling
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy $(FOLDERS) scripts
	$(BIN)/lint-imports
	$(BIN)/codespell

# NAME=value for a server's environment, unless the environment or .env names NAME
setting = $(if $(shell grep -sE '^ *(export +)?$(1) *=' .env),,$(1)=$${$(1):-$(2)})

serve: $(INSTALLED)  ## serve the artifact of the last `make demo` on 127.0.0.1:8000; the environment and .env go first
	$(call setting,GEM_MODELS,$(OUT)/artifacts) $(call setting,GEM_CATALOG,$(OUT)/log/catalog.arrow) \
	$(call setting,GEM_CLOCK,request) $(BIN)/python -m serving

load: $(INSTALLED)  ## load on a running server (HOST=...) with the users, ads and time of the last `make demo`; CSV report in runs/load/
	$(BIN)/python -m loadtests.run --host $(HOST) $(if $(wildcard $(OUT)/log/catalog.arrow),\
		--catalog $(OUT)/log/catalog.arrow --users-file $(OUT)/log/users.parquet) $(if $(wildcard $(OUT)/request.json),\
		--request $(OUT)/request.json)

clean:  ## remove runs, caches and build output; .venv stays
	rm -rf runs build dist *.egg-info .coverage .coverage.* htmlcov .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
