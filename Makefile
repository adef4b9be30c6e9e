# Every target sets up the virtual environment by itself; `make PYTHON=/path/to/python` chooses who makes it.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export PYTHON
# Tests start hundreds of processes: none compiles again what another has compiled.
unexport PYTHONDONTWRITEBYTECODE

# Rooms that have not come yet are left out rather than named in vain.
CODE := $(wildcard src tests tools benchmarks examples)
PYTHON_CODE := $(foreach room,$(CODE),$(if $(shell find $(room) -name '*.py' | head -n 1),$(room)))

# Tests that need more than Python have targets of their own.
APART := tests/browser tests/pooler tests/image
PYTEST := $(BIN)/python -m pytest
# Each process has a database server of its own; the tests of a file share what they start, so they stay together. They
# wait for leases and for other processes as often as for a core, so there are more of them than small machines have.
PROCESSES ?= 3
TEST_ALL := $(PYTEST) --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder \
	$(addprefix --ignore=,$(APART))
STAGE := tools/stage
# Not by make's own name for itself, for which `make -n` would run the whole line.
AGAIN := $(MAKE) --no-print-directory

.PHONY: help demo dev test test-browser test-pooler test-image test-apart model mutants check faults soak fmt proto bench

help:
	@echo "make demo          a workflow that survives the kill of its worker, in the terminal"
	@echo "make dev           server and an embedded PostgreSQL, until Ctrl-C"
	@echo "make test          the tests; they need nothing but Python"
	@echo "make check         format, lint, imports, types, generated code, all tests"
	@echo "make faults        every fault of the table at full size, with its figures; SEED=... chooses the moments"
	@echo "make soak          faults of every kind for MINUTES=..., with their figures; SEED=... chooses them"
	@echo "make fmt           format the code and mend what the linter can"
	@echo "make proto         generate code from the .proto files"
	@echo "make bench         the benchmarks"
	@echo "make test-browser  the dashboard's tests in Chromium"
	@echo "make test-pooler   the tests behind PgBouncer"
	@echo "make test-image    the steps of the Dockerfile, played in a clean folder; they download"
	@echo "make model         the model test with EXAMPLES=300 of 60 steps, others each time"
	@echo "make mutants       takes each guard out of the SQL in turn; a test must fail for every one"

$(READY): pyproject.toml constraints.txt tools/venv
	@$(STAGE) "set up $(VENV)" tools/venv $(VENV)
	@touch $@

demo: $(READY)
	@$(BIN)/kagzi demo

dev: $(READY)
	@$(BIN)/kagzi dev

test: $(READY)
	@$(STAGE) tests $(TEST_ALL)

test-browser: $(READY)
	@if [ -d tests/browser ]; then $(STAGE) "browser tests" $(PYTEST) tests/browser; \
	else echo "no browser tests yet: they come with the dashboard"; fi

# The suite of the contract, its servers behind PgBouncer; `make check` runs the part of it that says most.
POOLED ?= tests/conformance
test-pooler: $(READY)
	@KAGZI_TEST_POOLER=1 $(STAGE) "pooler tests" $(PYTEST) tests/pooler $(POOLED)

test-image: $(READY)
	@$(STAGE) "image tests" $(PYTEST) tests/image

EXAMPLES ?= 300
model: $(READY)
	@KAGZI_TEST_EXAMPLES=$(EXAMPLES) $(STAGE) "model test" $(PYTEST) tests/model

mutants: $(READY)
	@$(BIN)/python -m tools.mutants

check: $(READY)
	@$(STAGE) format $(BIN)/ruff format --check
	@$(STAGE) lint $(BIN)/ruff check
	@$(STAGE) imports $(BIN)/lint-imports --no-logo
	@$(STAGE) types $(BIN)/mypy $(PYTHON_CODE)
	@$(STAGE) "generated code" $(BIN)/python tools/proto.py --check
	@tools/beside "$(AGAIN) test-apart" $(STAGE) tests $(TEST_ALL)

test-apart: test-browser
	@if [ -x /usr/sbin/pgbouncer ]; then \
	$(MAKE) --no-print-directory test-pooler POOLED="tests/conformance/test_steps.py tests/conformance/test_signals.py"; \
	else echo "PgBouncer is not here (Debian: apt install pgbouncer), so its tests are left out"; fi

SEED ?=
MINUTES ?= 10
export SEED

faults: $(READY)
	@$(BIN)/python -m tests.faults

soak: $(READY)
	@$(BIN)/python -m tests.faults soak $(MINUTES)

fmt: $(READY)
	@$(STAGE) lint $(BIN)/ruff check --fix-only
	@$(STAGE) format $(BIN)/ruff format

proto: $(READY)
	@$(STAGE) "generated code" $(BIN)/python tools/proto.py

bench: $(READY)
	@$(BIN)/python -m benchmarks
