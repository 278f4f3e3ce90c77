# `make` lists the targets. A target first creates its prerequisites: the virtual environment (.venv)
# and, as root on a Debian or Ubuntu without one, a Java.

PYTHON ?= python3
GO ?= go
DEMO_ARGS ?=
PYTEST_ARGS ?=
BENCH_ARGS ?=
SECONDS ?= 600
MINUTES ?= 5
RUNS ?= 1000
SEED ?=
ORDER ?= 0
SPARK ?= 4.1.4
ETCD_VERSIONS ?= 3.5.35 3.6.16 3.7.3
# Most tests wait for other processes, so two test processes for each core keep the cores busy. Each
# test process starts its own brokers, and one of them a Spark, so it needs 3 GB.
FREE_BYTES := cat /proc/meminfo /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null \
  | awk '/^MemAvailable/ {n = $$2 * 1024} /^[0-9]+$$/ && (!n || $$1 < n) {n = $$1} END {print (n ? n : 9e9)}'
TEST_PROCESSES ?= $(shell $(FREE_BYTES) | awk '{n = int($$1 / 3e9); print (n < 1 ? 1 : n > 4 ? 4 : n)}')

VENV := $(CURDIR)/.venv
INSTALLED := .venv/.installed
KAFKA_VENV := $(CURDIR)/.cache/kafka/venv
KAFKA_INSTALLED := .cache/kafka/.installed
# An environment for each Python, for the oldest requirements, and for releases.
PYTHON_VENV = $(CURDIR)/.cache/python/$(notdir $(PYTHON))
FLOORS_VENV := $(CURDIR)/.cache/floors
FLOORS_UV := VIRTUAL_ENV=$(FLOORS_VENV) $(FLOORS_VENV)/bin/uv --quiet pip
FLOORS_OF := spark certs jwt console metrics
RELEASE_VENV := $(CURDIR)/.cache/release

# SPARK_HOME and PYTHONPATH of the calling shell would override the packages of .venv.
unexport SPARK_HOME SPARK_CONF_DIR PYTHONPATH PYTHONHOME VIRTUAL_ENV
# Without bytecode on disk each of the many processes of the tests compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE

# Spark starts its Python workers by these names, and finds its own scripts through PATH.
IN_VENV = PATH="$(VENV)/bin:$$PATH" PYSPARK_PYTHON="$(VENV)/bin/python" PYSPARK_DRIVER_PYTHON="$(VENV)/bin/python"
WITH_SPARK = $(IN_VENV) JAVA_HOME="$$(scripts/ensure-java)"

# uv installs in a minute what takes pip five. It does not read pip's configuration, so pip is tried
# after it. The filter keeps the slow steps of both, and errors.
PIP_INSTALL := .venv/bin/python -m pip install --disable-pip-version-check
UV_INSTALL := UV_SYSTEM_CERTS=true .venv/bin/python -m uv pip install --python .venv/bin/python
EXTRAS := -e '.[dev,demo,bench,notebook]'
SLOW := sed -un '/^ *\(Building\|Prepared\|Installed\|error\|ERROR\)/p; s/^ *\(Downloading .* MB)\).*/  \1/p; s/^ *\(Downloading .*MiB)\)/  \1/p; s/^\(Installing\) collected packages.*/  \1 what was downloaded/p'

# The tests of a file run in one process, because they share a broker or a Spark session.
# After the crash of a test process xdist would repeat a file and then hang. So the run ends instead.
SIDE_BY_SIDE = -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder --max-worker-restart=0

# The theme advertises its successor in every build.
MKDOCS := NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs

FAST := not full and not spark and not chaos and not notebook and not slow and not etcd

.DEFAULT_GOAL := help
.PHONY: help venv java demo test test-all test-portable test-fast test-etcd test-spark stress chaos attempts filters simulate check-histories test-python test-floors release-check lint format docs docs-site docs-site-serve bench kafka-jars bench-kafka clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "  Settings: PYTHON (a Python 3.11 or newer; now $(PYTHON)), DEMO_ARGS, PYTEST_ARGS, BENCH_ARGS,"
	@echo "  TEST_PROCESSES (how many run tests side by side; now $(TEST_PROCESSES)), SECONDS (of make stress),"
	@echo "  MINUTES (of make chaos and attempts), ETCD_VERSIONS (of make test-etcd; now $(ETCD_VERSIONS)), SPARK (of make test-spark; now $(SPARK)), RUNS, ONLY and ORDER (of make simulate), SEED (of both),"
	@echo "  GO and HISTORIES (a folder; of make check-histories)"

venv: $(INSTALLED)  ## Create .venv with everything that the other targets need

java:  ## Find a Java for Spark, or install one (root, apt-get)
	@home=$$(scripts/ensure-java) && echo "Java: $$home"

demo: venv java  ## Stream the flights of 2013 through three brokers, and kill one (DEMO_ARGS="--help" shows the options)
	@$(WITH_SPARK) $(if $(findstring --etcd,$(DEMO_ARGS)),ETCD="$$(scripts/ensure-etcd)") SPARK_CONF_DIR=conf .venv/bin/spark-submit examples/flights_demo.py $(DEMO_ARGS)

test: venv java  ## Run the tests that each change must pass
	@$(WITH_SPARK) ETCD="$$(scripts/ensure-etcd)" .venv/bin/pytest tests -m "not full" $(SIDE_BY_SIDE) $(PYTEST_ARGS)

test-all: venv java  ## Run all tests, with kills, notebooks, clusters of Spark and thousands of simulated runs
	@$(MAKE) --no-print-directory kafka-jars || echo "the tests of Kafka's tools and connector are skipped" >&2
	@$(WITH_SPARK) ETCD="$$(scripts/ensure-etcd)" .venv/bin/pytest tests $(SIDE_BY_SIDE) $(PYTEST_ARGS)
	@$(MAKE) --no-print-directory test-portable

test-portable: venv java  ## Run the tests of `make test` without the calls of Linux, as on macOS
	@ISOLOG_PORTABLE=1 $(WITH_SPARK) ETCD="$$(scripts/ensure-etcd)" .venv/bin/pytest tests -m "not full" $(SIDE_BY_SIDE) $(PYTEST_ARGS)

test-fast: venv  ## Run the tests that need no Spark and take under a minute
	@$(IN_VENV) .venv/bin/pytest tests -m "$(FAST)" $(SIDE_BY_SIDE) $(PYTEST_ARGS)

test-etcd: venv java  ## Run the tests of etcd with other releases, built with Go (ETCD_VERSIONS)
	@for version in $(ETCD_VERSIONS); do \
	    etcd="$$(scripts/build-etcd $$version)" && echo "etcd $$version" && \
	    $(WITH_SPARK) ETCD="$$etcd" .venv/bin/pytest tests -m etcd $(SIDE_BY_SIDE) $(PYTEST_ARGS) || exit 1; done

test-python:  ## Run the tests that need no Spark with another Python (PYTHON=python3.13, TESTS)
	@$(PYTHON) -m venv $(PYTHON_VENV)
	@$(PYTHON_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@PATH="$(PYTHON_VENV)/bin:$$PATH" $(PYTHON_VENV)/bin/pytest $(or $(TESTS),tests) -m "$(FAST)" $(SIDE_BY_SIDE) $(PYTEST_ARGS)

# The TestClient of Starlette 0.46 needs httpx, and later ones httpx2.
test-floors:  ## Run the same with the oldest requirements that setup.cfg permits (PYTHON, TESTS)
	@$(PYTHON) -m venv $(FLOORS_VENV)
	@$(FLOORS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check uv
	@$(FLOORS_UV) compile --no-deps --resolution lowest-direct --no-emit-package pyspark $(FLOORS_OF:%=--extra %) setup.cfg > $(FLOORS_VENV)/floors.txt
	@$(FLOORS_UV) install -e '.[dev]' httpx --constraint $(FLOORS_VENV)/floors.txt
	@PATH="$(FLOORS_VENV)/bin:$$PATH" $(FLOORS_VENV)/bin/pytest $(or $(TESTS),tests) -m "$(FAST)" $(SIDE_BY_SIDE) $(PYTEST_ARGS)

release-check:  ## Build what a release has into build/release/, and check it
	@$(PYTHON) -m venv $(RELEASE_VENV)
	@$(RELEASE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[release]'
	@$(RELEASE_VENV)/bin/python scripts/release_check.py

# PySpark 4.0 leaves its sockets to the garbage collector, whose warning would be an error.
test-spark: venv java  ## Run the tests of Spark with another release of PySpark (SPARK=4.1.4, in .cache)
	@spark="$$(PYTHON=$(PYTHON) scripts/ensure-pyspark $(SPARK))" && \
	    ISOLOG_OTHER_PYTHON="$(VENV)/bin/python" $(subst $(VENV),$$spark,$(WITH_SPARK)) ETCD="$$(scripts/ensure-etcd)" $$spark/bin/pytest tests -m spark -W ignore::ResourceWarning \
	    -W ignore::pytest.PytestUnraisableExceptionWarning $(SIDE_BY_SIDE) $(PYTEST_ARGS)

stress: venv  ## Cut connections and end brokers under load for SECONDS
	@$(IN_VENV) .venv/bin/python -m tests.chaos.stress --seconds $(SECONDS)
	@$(IN_VENV) .venv/bin/python -m tests.broker.replication.stress --seconds $(SECONDS)

chaos: venv java  ## Kill, stop, pause and cut the brokers of a cluster under load for MINUTES (SEED; HOSTS=1: over a bad network; LAKE=1: with workers of lakes; KAFKA=1: with Kafka's clients)
	@$(WITH_SPARK) ETCD="$$(scripts/ensure-etcd)" .venv/bin/python -m tests.chaos.cluster --spark --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(HOSTS),--hosts) $(if $(LAKE),--lake) $(if $(KAFKA),--kafka)

attempts: venv java  ## Compare the rows of Spark's attempts in order, while workers and brokers are killed, for MINUTES (SEED)
	@$(WITH_SPARK) .venv/bin/python -m tests.chaos.attempts --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

filters: venv java  ## Compare COUNT random filters with Spark, from SEED on
	@$(WITH_SPARK) ISOLOG_FILTERS=$(or $(COUNT),5000) ISOLOG_SEED=$(or $(SEED),1) .venv/bin/pytest -q tests/spark/test_random_filters.py

simulate: venv  ## Run RUNS simulated runs from SEED on: brokers, clients and faults in one process
	@.venv/bin/python -m tests.simulation --runs $(RUNS) --seed $(or $(SEED),0) --order $(ORDER) $(if $(ONLY),--only "$(ONLY)")

check-histories: venv  ## Check histories of 200 (or RUNS) simulated runs, and those in HISTORIES, with a program in Go
	@command -v $(GO) >/dev/null || { \
	    echo "check-histories needs Go 1.24 or newer, and there is no $(GO). Get it from https://go.dev/dl, or name it: make check-histories GO=/path/to/go" >&2; exit 1; }
	@cd tests/histories && $(GO) vet . && HISTORIES= $(GO) test .
	@rm -rf build/histories
	@.venv/bin/python -m tests.simulation --runs $(if $(filter file,$(origin RUNS)),200,$(RUNS)) --seed $(or $(SEED),0) --histories build/histories
	@cd tests/histories && $(GO) run . $(CURDIR)/build/histories $(if $(HISTORIES),$(abspath $(HISTORIES)))
	@cd tests/histories && HISTORIES=$(CURDIR)/build/histories $(GO) test -count=1 -run Mutants -v .

lint: venv  ## Check style and types
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/mypy --platform darwin --cache-dir .mypy_cache/darwin

format: venv  ## Format the code
	.venv/bin/ruff format
	.venv/bin/ruff check --fix

docs: venv  ## Generate tables and pictures of the docs from the code
	@.venv/bin/python -m docs_site.tables
	@.venv/bin/python -m docs_site.pictures
	@.venv/bin/python -m bench.kafka.page
	@.venv/bin/python -m bench.growth_chart
	@.venv/bin/python -m tests.rules

docs-site: venv  ## Build the documentation site into build/site/, and check its links
	@$(MKDOCS) build
	@echo "build/site/index.html"

docs-site-serve: venv  ## Serve the site at http://127.0.0.1:8000, and rebuild it when a page changes
	@$(MKDOCS) serve

bench: venv java  ## Measure speed against the ceiling of this machine (BENCH_ARGS)
	@PYTHONPATH="$(CURDIR)" $(WITH_SPARK) .venv/bin/python -m bench $(BENCH_ARGS)

kafka-jars: venv java  ## Fetch Kafka, Kafka Connect and Spark's Kafka connector into .cache, for their tests
	@$(WITH_SPARK) .venv/bin/python -m bench.kafka.jars

bench-kafka: $(KAFKA_INSTALLED) java  ## Measure next to a real Kafka and Spark's connector for it (QUICK=1, PAGE=1, BENCH_ARGS)
	@PYTHONPATH="$(CURDIR)" $(subst $(VENV),$(KAFKA_VENV),$(WITH_SPARK)) $(KAFKA_VENV)/bin/python -m bench kafka $(if $(QUICK),--quick) $(if $(PAGE),--page) $(BENCH_ARGS)

clean:  ## Remove the output of runs and builds, except .venv and .cache
	rm -rf build dist *.egg-info demo-output bench/results spark-warehouse metastore_db derby.log
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . \( -path ./.venv -o -path ./.cache \) -prune -o -type d \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +

# Debian and Ubuntu package venv separately. Without it `-m venv` fails and leaves half an environment.
$(INSTALLED): setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "isolog needs Python 3.11 or newer, and $(PYTHON) is not. Name another: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@.venv/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv >/dev/null 2>&1 || { \
	    package=$$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
	    if [ "$$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then \
	        echo "$(PYTHON) -m venv fails. On Debian and Ubuntu: sudo apt-get install $$package; then run make again." >&2; exit 1; \
	    fi; \
	    echo "installing $$package"; \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends $$package >/dev/null && \
	    $(PYTHON) -m venv --clear .venv; }
	@echo "installing into .venv (PySpark alone is 400 MB: some minutes the first time)"
	@bash -o pipefail -c "{ $(PIP_INSTALL) --quiet uv && $(UV_INSTALL) $(EXTRAS); } 2>&1 | $(SLOW)" || { \
	    echo "uv cannot install (for example because only pip knows your index). Trying pip."; \
	    bash -o pipefail -c "$(PIP_INSTALL) $(EXTRAS) | $(SLOW)"; }
	@.venv/bin/isolog prepare-spark
	@touch $@

# Spark's Kafka connector needs another PySpark than the other targets.
$(KAFKA_INSTALLED): setup.cfg pyproject.toml | $(INSTALLED)
	@.venv/bin/python -m venv $(KAFKA_VENV)
	@echo "installing into .cache/kafka/venv"
	@$(KAFKA_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[bench-kafka]'
	@$(KAFKA_VENV)/bin/isolog prepare-spark
	@touch $@
