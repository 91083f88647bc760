# make run    sets up and runs the gateway on its embedded default: a demo against the simulator
# make test   sets up and runs the tests
# make check  sets up and runs the linters and the type checker

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test check format lock clean

run: $(VENV)/ready
	$(BIN)/payout-gateway serve --demo

test: $(VENV)/ready-dev
	$(BIN)/python -m pytest $(TESTS)

check: $(VENV)/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/ready-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Everything is pinned with hashes; the project itself is installed on top, without looking further.
$(VENV)/ready: requirements.lock pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/ready-dev: requirements-dev.lock $(VENV)/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@touch $@

# Needs uv. Takes the newest versions that pyproject.toml allows.
lock:
	uv pip compile pyproject.toml --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --group build --output-file requirements.lock
	uv pip compile pyproject.toml --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --group build --group dev --output-file requirements-dev.lock

clean:
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache
