# Everything runs from here; `make demo` and `make test` need python3 (3.11 or newer), make and the package registry.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST_WORKERS ?= 2
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
PHONY_TESTS := test test-duckdb2 test-postgres
.PHONY: help install demo $(PHONY_TESTS) lint types imports bench bench-spine bench-hot bench-cold soak examples dagster docs clean

help:
	@echo "make demo      install, then run the main job on real trajectories"
	@echo "make test      install, then run the whole test suite"
	@echo "make lint      ruff; make types: mypy; make imports: the import contract"
	@echo "make bench     all benchmarks (BENCH=quick for a short run)"
	@echo "make soak      crash the hot log for SOAK_MINUTES (60); counts add up over runs"
	@echo "make examples  run every example"
	@echo "make dagster   open the Dagster UI on ./.stratalog"
	@echo "make clean     remove the virtual environments and caches"

$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "stratalog needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version)."; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
	  echo "This Python cannot make virtual environments. On Debian and Ubuntu:"; \
	  echo "  apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

install: $(VENV)/installed

demo: install
	$(BIN)/stratalog demo $(DEMO)

test: install
	$(BIN)/pytest -n $(PYTEST_WORKERS) --dist worksteal $(TESTS)

# The query tests once more on DuckDB 2, in an environment of its own.
.venv-duckdb2/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-duckdb2
	grep -v '^duckdb==' constraints.txt > .venv-duckdb2/constraints.txt
	.venv-duckdb2/bin/pip install --quiet --constraint .venv-duckdb2/constraints.txt --editable '.[dev]' 'duckdb>=2,<3'
	@touch $@

test-duckdb2: .venv-duckdb2/installed
	.venv-duckdb2/bin/pytest -n $(PYTEST_WORKERS) tests/integration/test_views.py tests/integration/test_s3.py \
	  tests/integration/test_sql_questions.py tests/integration/test_untrusted_sql.py

# What depends on Postgres once more on the other versions that are supported.
test-postgres: install
	for major in 15 18; do \
	  STRATALOG_TEST_PG_MAJOR=$$major $(BIN)/pytest -n $(PYTEST_WORKERS) tests/integration/test_migrate.py \
	    tests/integration/test_ingest.py tests/integration/test_sidecar.py tests/integration/test_consolidate.py \
	    tests/integration/test_erasure.py tests/integration/test_erasure_bytes.py || exit 1; \
	done

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

imports: install
	$(BIN)/lint-imports

bench: bench-spine bench-hot bench-cold

# Peers of the benchmarks, in an environment of their own.
.venv-peers/installed: benchmarks/requirements-peers.txt
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/pip install --quiet --requirement benchmarks/requirements-peers.txt
	@touch $@

bench-hot bench-cold: .venv-peers/installed

# The long versions of the crash tests and the simulation, for SOAK_MINUTES; root for those that mount disks.
soak: install
	$(BIN)/python benchmarks/soak.py

# Not by an implicit rule, which make does not look for where a target is phony.
bench-spine bench-hot bench-cold: bench-%: install
	$(BIN)/python benchmarks/$*.py

examples: install
	$(BIN)/python examples/run_all.py

dagster: install
	$(BIN)/stratalog dagster

docs: install
	$(BIN)/python -m stratalog.cold.schema_docs > docs/schema.md

clean:
	rm -rf $(VENV) .venv-duckdb2 .venv-peers build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
