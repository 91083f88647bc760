# make run    sets up and runs the gateway on its embedded default: a demo against the simulator
# make install  sets up: the command is .venv/bin/payout-gateway
# make test   sets up and runs the tests
# make check  sets up and runs the linters and the type checker
# make docs   writes deploy/configuration.md and mappings/operations.md anew, of the code
# make proof  asks two worlds the same random things for an hour, PROOF=60 for a minute, and compares
# make mutants  breaks every row of every table of mappings/ in turn, and has the proof find it; what was
#             tried is kept in .mutants until a source changes, so that a run that was stopped goes on
# make fuzz   sets up and runs the fuzzers, SECONDS=60 each, and asks all operations EXAMPLES=60 odd things
# make soak   a load and fault run on loopback that takes about SECONDS=60 (900 for a long one), and prints
#             times, with memory over time at half of what it can do; then SEEDS=2000 of the simulation, and 600 gateways that are killed
# make bench  measures the gateway side by side with others, ROUNDS=3 of BENCH_SECONDS=1 each, what a live
#             comparison adds to an answer, and one batch of PAYMENTS=100000; see "Speed" in README.md

PYTHON ?= python3.11
SECONDS ?= 60
PROOF ?= 3600
SEEDS ?= 2000
EXAMPLES ?= 60
ROUNDS ?= 3
BENCH_SECONDS ?= 1
PAYMENTS ?= 100000
POSTGRES ?=
VENV := .venv
BIN := $(VENV)/bin
# Tests wait more than they work.
PROCESSES ?= $(shell expr 2 \* $$(nproc 2>/dev/null || echo 2))

.PHONY: run install test check format docs fuzz proof mutants soak bench lock clean

run: $(VENV)/ready
	$(BIN)/payout-gateway serve --demo

install: $(VENV)/ready
	@echo 'Ready: export PATH="$(CURDIR)/$(BIN):$$PATH"'

# Compiled beforehand: hundreds of processes are started, also where Python may not write bytecode.
test: $(VENV)/ready-dev
	@tests/browser.sh $(BIN)/playwright
	@$(BIN)/python -m compileall -q gateway mappings tests
	$(BIN)/python -m pytest -n $(PROCESSES) $(TESTS) || { test $$? -eq 1 || exit 1; \
	  echo '== What failed, once more and by itself; what passes now depends on the machine: look into it =='; \
	  $(BIN)/python -m pytest --last-failed --last-failed-no-failures none $(TESTS); }

check: $(VENV)/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/ready-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/ready
	$(BIN)/python -m gateway.docgen.reference

proof: $(VENV)/ready-dev
	$(BIN)/python -m tests.proof --seconds $(PROOF)

mutants: $(VENV)/ready-dev
	$(BIN)/python -m tests.mutations --keep .mutants --processes $$(nproc 2>/dev/null || echo 2)

fuzz: $(VENV)/ready-fuzz
	EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest tests/test_described_requests.py tests/test_odd_bodies.py
	for target in wire flows signer; do \
	  $(BIN)/python -m tests.fuzz $$target -max_total_time=$(SECONDS) || exit 1; \
	done

soak: $(VENV)/ready-dev
	$(BIN)/python -m tests.soak $(SECONDS)
	$(BIN)/python -m tests.simulation --seeds 0:$(SEEDS)
	KILLS=600 $(BIN)/python -m pytest -n 2 tests/test_kills.py

# What it is measured against is installed into .bench alone. Without npm Node is left out, and it says so.
bench: $(VENV)/ready-dev .bench/ready
	$(BIN)/python -m tests.bench --rounds $(ROUNDS) --seconds $(BENCH_SECONDS) $(if $(POSTGRES),--postgres $(POSTGRES))
	$(BIN)/python -m tests.bench --comparing --rounds $(ROUNDS) --seconds 10
	$(BIN)/python -m tests.bench --big --payments $(PAYMENTS)

# Everything is pinned with hashes; the project itself is installed on top, without looking further.
$(VENV)/ready: requirements.lock pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/ready-dev: requirements-dev.lock $(VENV)/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@touch $@

# Not in the lock: there are wheels for few Pythons and platforms, and only `make fuzz` wants it.
$(VENV)/ready-fuzz: $(VENV)/ready-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "atheris>=3"
	@touch $@

.bench/ready: tests/bench/contestants/requirements.txt tests/bench/contestants/package.json
	@test -x .bench/python/bin/python || $(PYTHON) -m venv .bench/python
	.bench/python/bin/python -m pip install --quiet --disable-pip-version-check -r tests/bench/contestants/requirements.txt
	cp tests/bench/contestants/package.json .bench/
	-command -v npm >/dev/null && npm install --prefix .bench --no-audit --no-fund --silent
	@touch $@

# Needs uv. Takes the newest versions that pyproject.toml allows.
lock:
	uv pip compile pyproject.toml --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --group build --output-file requirements.lock
	uv pip compile pyproject.toml --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --group build --group dev --output-file requirements-dev.lock

clean:
	rm -rf $(VENV) .fuzz .bench .mutants dist .mypy_cache .ruff_cache .pytest_cache
