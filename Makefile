# Everything is installed into .venv/ in this folder; nothing else on the machine is touched.
PYTHON ?= python3
BIN := .venv/bin
CONFIG ?=
SOURCES := agent bridge channels tests bench

.PHONY: run test check format lock bench demo picture soak clean

run: .venv/.run-ready  ## start the bot (CONFIG=file.yaml for another config)
	@$(BIN)/steadybot run $(if $(CONFIG),-c $(CONFIG))

test: .venv/.dev-ready  ## everything CI runs
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/pytest -q

check: .venv/.dev-ready  ## before a commit: format, lint, types, imports, quick tests
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q -x -m "not kill"

format: .venv/.dev-ready
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

bench: .venv/.dev-ready  ## print the figures that README and docs quote
	@for file in bench/*.py; do case $$file in */_*|*/__init__.py) ;; *) echo "== $$file"; $(BIN)/python -m bench.$$(basename $$file .py) || exit 1;; esac; done

soak: .venv/.dev-ready  ## the properties over a million histories
	HYPOTHESIS_PROFILE=soak $(BIN)/pytest -q --timeout=0 tests/agent
	STEADYBOT_KILLS=200 $(BIN)/pytest -q --timeout=0 tests/kill

demo: .venv/.run-ready  ## the bot at work, without a key
	@printf 'hello\nwhat time is it in Tokyo?\n(17 + 4) * 2\n' | $(BIN)/steadybot run

picture: .venv/.dev-ready  ## docs/console.svg, from a real session
	$(BIN)/python -m docs.picture

lock:  ## renew the lock files (needs uv)
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade pyproject.toml -o requirements.lock
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade --extra dev pyproject.toml -o requirements-dev.lock

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "steadybot needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 …"; exit 1; }
	@echo "setting up .venv (once) …" >&2
	@$(PYTHON) -m venv .venv

.venv/.run-ready: requirements.lock pyproject.toml | .venv/bin/python
	@$(BIN)/pip install -q --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/pip install -q --disable-pip-version-check --no-deps -e .
	@touch $@

.venv/.dev-ready: requirements-dev.lock pyproject.toml | .venv/bin/python
	@$(BIN)/pip install -q --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@$(BIN)/pip install -q --disable-pip-version-check --no-deps -e .
	@touch .venv/.run-ready $@

clean:
	rm -rf .venv build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
