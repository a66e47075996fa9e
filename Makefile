# Every target sets itself up: `make demo` and `make test` each work alone after `git clone`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

.PHONY: demo test coverage test-all test-flower lint browser database docs bench bench-federated audit-experiment posterior-experiment federated-experiment synthesis-experiment inference-experiment features-experiment experiments papers papers-quick clean

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "tacita needs Python 3.11 or newer; set PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $(READY)

demo: $(READY)   ## train on built-in digits; writes runs/demo-digits-1/label.html
	$(BIN)/tacita demo

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The label's pages are tested in a real browser. Without root, and without Chromium, those tests are skipped with a reason.
browser:
	@command -v chromium >/dev/null || [ -n "$$TACITA_CHROMIUM" ] || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  { apt-get install -y -qq chromium >/dev/null 2>&1 || { apt-get update -qq && apt-get install -y -qq chromium; } >/dev/null 2>&1; }; } || \
	  echo "no Chromium, and no root to install it: browser tests are skipped"

# Team ledgers are tested on a real PostgreSQL server, which the tests start themselves; skipped like the browser's.
SERVER := command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1
database:
	@$(SERVER) || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  { apt-get install -y -qq postgresql >/dev/null 2>&1 || { apt-get update -qq && apt-get install -y -qq postgresql; } >/dev/null 2>&1; }; } || \
	  echo "no PostgreSQL, and no root to install it: tests of team ledgers are skipped"

test: $(READY) lint browser database   ## everything CI runs; under ten minutes on two cores
	$(PYTEST) -m "not slow and not flower"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir $(VENV)/site

coverage: $(READY) browser database   ## the same tests, with branch coverage of at least 95%: tracing nearly doubles their time
	$(PYTEST) -m "not slow and not flower" --cov --cov-report=term

test-all: $(READY) lint browser database   ## also the long counts, and every experiment of the papers in small (about an hour)
	HYPOTHESIS_PROFILE=thorough $(PYTEST)
	$(MAKE) papers-quick

test-flower: $(READY)   ## real Flower processes on loopback: simulation, deployment, a killed server (about ten minutes, alone on the machine)
	$(BIN)/pytest -m flower tests/federated tests/synthesis

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(READY)   ## speed as ratios against direct evaluation, dp-accounting, Opacus, OpenDP and Pyro
	$(BIN)/python benchmarks/accounting.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/inference.py
	$(BIN)/python benchmarks/randomness.py

bench-federated: $(READY)   ## federated rounds against Apple's pfl, which gets an environment of its own (it wants an older dp-accounting)
	test -x .venv-pfl/bin/python || $(PYTHON) -m venv .venv-pfl
	.venv-pfl/bin/python -c "import pfl" 2>/dev/null || .venv-pfl/bin/python -m pip install --quiet --disable-pip-version-check "pfl[pytorch]==0.6.*" torch==2.13.0
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/federated.py --pfl .venv-pfl/bin/python

audit-experiment: $(READY)   ## the tables of docs/explanation/audit.md; about three hours on one core
	cd experiments/audit && PYTHONPATH=../../tests/audit ../../$(BIN)/python run.py --seeds 200 --bug-seeds 20 --setting "every record, one step" > results.jsonl
	cd experiments/audit && PYTHONPATH=../../tests/audit ../../$(BIN)/python run.py --seeds 50 --bug-seeds 10 --setting "one in ten, 50 steps" >> results.jsonl
	cd experiments/audit && ../../$(BIN)/python table.py

posterior-experiment: $(READY)   ## the figures and the table of docs/explanation/posteriors.md; about three minutes
	$(BIN)/python experiments/posterior_release/run.py figures
	$(BIN)/python experiments/posterior_release/run.py coverage

federated-experiment: $(READY)   ## the tables and figures of docs/explanation/results/federated.md; what is missing of them; needs MNIST and RetinaMNIST, about two hours from nothing
	$(BIN)/python -m experiments.federated_mnist.choose
	$(BIN)/python -m experiments.federated_mnist.run
	$(BIN)/python -m experiments.federated_mnist.page

synthesis-experiment: $(READY)   ## the tables of docs/explanation/results/synthesis.md; needs MNIST, Fashion-MNIST and Adult, about four hours on one core
	$(BIN)/python experiments/synthesis/run.py all
	$(BIN)/python experiments/synthesis/run.py table

inference-experiment: $(READY)   ## the table and the figure of docs/explanation/results/inference.md; needs Abalone and Adult, half an hour on one core
	$(BIN)/python -m experiments.variational_inference.run
	$(BIN)/python -m experiments.variational_inference.page

PAPERS := papers gans inversion federated_generators authors features variational_inference federated_mnist
papers: $(READY)   ## every table and figure of the papers that has no row yet, row by row, then their page; about twelve hours from nothing
	for name in features federated_mnist; do OMP_NUM_THREADS=1 $(BIN)/python -m experiments.$$name.choose || exit 1; done
	for name in $(PAPERS); do OMP_NUM_THREADS=1 $(BIN)/python -m experiments.$$name.run || exit 1; done
	for name in features federated_mnist variational_inference papers; do $(BIN)/python -m experiments.$$name.page || exit 1; done

papers-quick: $(READY)   ## the same scripts at small sizes, into experiments/*/quick.jsonl; about a quarter of an hour
	rm -f experiments/*/quick.jsonl
	for name in $(PAPERS); do OMP_NUM_THREADS=1 $(BIN)/python -m experiments.$$name.run --quick || exit 1; done

features-experiment: $(READY)   ## what docs/explanation/results/features.md still lacks, then the page; needs CIFAR-10 and Fashion-MNIST, about an hour
	OMP_NUM_THREADS=1 MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=8000000000 $(BIN)/python -m experiments.features.run
	$(BIN)/python -m experiments.features.page

experiments: $(READY)   ## what docs/explanation/results/mnist.md, the clip rules in docs/how-to/train.md and the tuned rows in docs/how-to/tune.md still lack, row by row, then the page; needs MNIST, about two hours from nothing
	OMP_NUM_THREADS=1 $(BIN)/python -m experiments.clipping.run
	OMP_NUM_THREADS=1 $(BIN)/python -m experiments.tuning.run
	OMP_NUM_THREADS=1 $(BIN)/python -m experiments.mnist_dpsgd.run
	$(BIN)/python -m experiments.mnist_dpsgd.page

clean:
	rm -rf $(VENV) .venv-pfl site build dist
