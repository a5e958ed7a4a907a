# make serve      install and start the server on the bundled model   (ARGS="--port 9000 /path/to/model")
# make test       install and run every test                          (ARGS="-x tests/server")
# make test-long  thousands of traces and a soak of two minutes       (ARGS="tests/long --models 100")
# make lint       ruff and mypy
# make format     ruff, in place

PYTHON := python3
ARGS :=
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: serve test test-long lint format

serve: .venv/installed
	@exec $(BIN)/nextfit serve $(ARGS)

test: .venv/installed-test
ifeq ($(strip $(ARGS)),)
	$(BIN)/python -m pytest -m alone
	$(BIN)/python -m pytest -m "not alone" -n 2 --dist loadfile
else
	$(BIN)/python -m pytest $(ARGS)
endif
	@$(BIN)/python tools/size_report.py

test-long: .venv/installed-test
	$(BIN)/python -m pytest -n 2 $(or $(ARGS),tests/long)
	$(BIN)/python -m tests.long.soak --minutes 2

lint: .venv/installed-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/installed-lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# A stamp is newer than what it was made from, so a second make installs nothing.
SOURCES := pyproject.toml constraints.txt setup.py $(wildcard nextfit/ops/compiled/*.h nextfit/ops/compiled/*.cpp)

.venv/created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python >= 3.11 is needed, $(PYTHON) is %d.%d: make PYTHON=python3.12 ..." % sys.version_info[:2])'
	$(PYTHON) -m venv .venv
	@touch $@

.venv/installed: .venv/created $(SOURCES)
	$(PIP) --editable .
	@touch $@

.venv/installed-test: .venv/created $(SOURCES)
	$(PIP) --editable '.[test]'
	@touch $@ .venv/installed

.venv/installed-lint: .venv/created $(SOURCES)
	$(PIP) --editable '.[test,lint]'
	@touch $@ .venv/installed-test .venv/installed
