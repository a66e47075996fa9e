# Every target sets itself up: `make demo` and `make test` each work alone after `git clone`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n 2

.PHONY: demo test test-all lint docs bench clean

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "tacita needs Python 3.11 or newer; set PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $(READY)

demo: $(READY)   ## account for built-in example norms; writes demo.svg
	$(BIN)/tacita account --example --noise-multiplier 1 --sample-rate 0.01 --steps 2000 --delta 1e-5 --figure demo.svg

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: $(READY) lint   ## everything CI runs; under ten minutes on two cores
	$(PYTEST) -m "not slow" --cov --cov-report=term
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir $(VENV)/site

test-all: $(READY) lint   ## also the long counts (about half an hour)
	HYPOTHESIS_PROFILE=thorough $(PYTEST)

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(READY)   ## speed as ratios against direct evaluation and against dp-accounting
	$(BIN)/python benchmarks/accounting.py

clean:
	rm -rf $(VENV) site demo.svg build dist
