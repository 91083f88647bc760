# make run      installs everything and runs the gateway against the built-in simulator
# make install  installs everything; the command is .venv/bin/payout-gateway
# make test     runs all tests
# make quick    runs the unit tests and the transcripts without sockets, about half a minute on two idle cores
# make check    runs linters, formatter, type checker and import rules
# make docs     regenerates deploy/commands.md, mappings/operations.md and gateway/writes/states.md
# make pictures  takes the pictures of the README from a running demo
# make proof    compares the gateway with the simulator's legacy interface, PROOF=3600 seconds long
# make mutants  breaks every row of every table of mappings/ and checks that a case or the proof finds it;
#               continues after an interruption until a source changes (.mutants)
# make fuzz     runs the fuzzers for SECONDS=60 each, and EXAMPLES=60 generated requests per operation
# make soak     loads a gateway on loopback for about SECONDS=60 (900 for a long run) and prints latencies and memory;
#               then SEEDS=2000 of the simulation and 600 killed gateways
# make bench    measures the gateway beside others, ROUNDS=3 of BENCH_SECONDS=1, shadow traffic, a batch of PAYMENTS=100000,
#               and the path of a request through the code

# The first of these that is Python 3.11 or later; PYTHON=… names another.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.14 python; do \
  $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
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
# Unit tests that start no process and hardly wait, and the transcripts without sockets.
QUICK := tests/test_cases_in_process.py tests/test_suite_imports.py tests/mappings tests/gateway/simulator \
  --ignore tests/gateway/simulator/test_command.py tests/gateway/http tests/gateway/admission/load \
  --ignore tests/gateway/admission/load/test_file_descriptors.py tests/gateway/test_curl.py \
  tests/gateway/storage/test_ttl_cache.py \
  tests/gateway/test_reference.py tests/gateway/test_routes.py tests/gateway/http/test_request_paths.py \
  tests/gateway/http/test_request_ids.py tests/gateway/payloads/test_json_codec.py \
  tests/gateway/reads/test_listing.py tests/gateway/signed_api/test_credentials.py tests/gateway/storage/test_encryption.py \
  tests/gateway/upstream/test_circuit_breaker.py tests/gateway/upstream/test_clock.py
COLLECT := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --collect-only -q >/dev/null
# Four for each core, because tests often wait. They take tests from each other: one would otherwise be
# left with the slow ones of its share, and the others idle.
PROCESSES ?= $(shell expr 4 \* $$(nproc 2>/dev/null || echo 2))

.PHONY: run install test quick check format docs pictures fuzz proof mutants soak bench lock clean

run: $(VENV)/ready
	$(BIN)/payout-gateway serve --demo

install: $(VENV)/ready
	@echo 'Ready: export PATH="$(CURDIR)/$(BIN):$$PATH"'

# Compiles first: the tests start hundreds of processes, some of which may not write bytecode. pytest may: each
# of its processes would otherwise rewrite the assertions of every module again, as all would do at the same time
# in a new checkout if two did not share that before.
test: $(VENV)/ready-dev
	@tests/browser.sh $(BIN)/playwright
	@$(BIN)/python -m compileall -q gateway mappings tests
	@ls tests/__pycache__/*-pytest-*.pyc >/dev/null 2>&1 || { $(COLLECT) tests/gateway & $(COLLECT) --ignore tests/gateway; wait; }
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal $(TESTS) || { test $$? -eq 1 || exit 1; \
	  echo '== Repeating the failed tests alone; a test that passes now is flaky: find out why =='; \
	  $(BIN)/python -m pytest --last-failed --last-failed-no-failures none $(TESTS); }

# One process per core: these tests compute.
quick: $(VENV)/ready-dev
	$(BIN)/python -m pytest -q -n $$(nproc 2>/dev/null || echo 2) $(QUICK)

check: $(VENV)/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/ready-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/ready
	$(BIN)/python -m tests.reference_pages

# Needs `payout-gateway serve --demo --traffic` in another shell, for a minute or longer.
pictures: $(VENV)/ready-dev
	$(BIN)/python -m tests.pictures

proof: $(VENV)/ready-dev
	$(BIN)/python -m tests.proof --seconds $(PROOF)

mutants: $(VENV)/ready-dev
	$(BIN)/python -m tests.mutations --keep .mutants --processes $$(nproc 2>/dev/null || echo 2)

fuzz: $(VENV)/ready-fuzz
	EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest tests/test_openapi_requests.py tests/test_malformed_bodies.py
	for target in wire flows signer; do \
	  $(BIN)/python -m tests.fuzz $$target -max_total_time=$(SECONDS) || exit 1; \
	done

soak: $(VENV)/ready-dev
	$(BIN)/python -m tests.soak $(SECONDS)
	$(BIN)/python -m tests.simulation --seeds 0:$(SEEDS)
	KILLS=600 $(BIN)/python -m pytest -n 2 -o faulthandler_timeout=0 tests/test_kills.py tests/test_kill_points.py tests/test_simulation.py tests/test_paused_hosts.py

# The contestants are installed into .bench only. Without npm, Node is left out with a message.
bench: $(VENV)/ready-dev .bench/ready
	$(BIN)/python -m tests.bench --rounds $(ROUNDS) --seconds $(BENCH_SECONDS) $(if $(POSTGRES),--postgres $(POSTGRES))
	$(BIN)/python -m tests.bench --comparing --rounds $(ROUNDS) --seconds 10
	$(BIN)/python -m tests.bench --big --payments $(PAYMENTS)
	$(BIN)/python -m tests.bench.request_path --instructions

# Dependencies are pinned with hashes; the project itself is installed without resolving any.
$(VENV)/ready: requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo 'Python 3.11 or later is needed and was not found; name one: make PYTHON=/path/to/python3' >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/ready-dev: requirements-dev.lock $(VENV)/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@touch $@

# Not in the lock file: wheels exist for few Pythons and platforms, and only `make fuzz` needs it.
$(VENV)/ready-fuzz: $(VENV)/ready-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "atheris>=3"
	@touch $@

.bench/ready: tests/bench/contestants/requirements.txt tests/bench/contestants/package.json
	@test -x .bench/python/bin/python || $(PYTHON) -m venv .bench/python
	.bench/python/bin/python -m pip install --quiet --disable-pip-version-check -r tests/bench/contestants/requirements.txt
	cp tests/bench/contestants/package.json .bench/
	-command -v npm >/dev/null && npm install --prefix .bench --no-audit --no-fund --silent
	@touch $@

# Needs uv. Upgrades to the newest versions that pyproject.toml allows.
lock:
	uv pip compile pyproject.toml --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --group build --output-file requirements.lock
	uv pip compile pyproject.toml --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --group build --group dev --output-file requirements-dev.lock

clean:
	rm -rf $(VENV) .fuzz .bench .mutants dist .mypy_cache .ruff_cache .pytest_cache
