# `make` shows the targets. Each of them sets up what it needs: only Python ≥ 3.11, git and make are expected.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
PEERS  := $(VENV)/.peers
UV     := $(BIN)/uv
JOBS   ?= 5
PROOF_SECONDS ?= 60
VERSIONS ?= 13 14 15 16 17
KAFKAS ?= 3.3.2 3.9.1
export PROOF_SECONDS
export UV_NO_PROGRESS ?= 1
unexport PYTHONDONTWRITEBYTECODE  # with it every process that a test starts compiles all that it imports

.DEFAULT_GOAL := help
.PHONY: help setup demo test check lint types layers lowest proof versions bench docs screenshots dist sbom constraints format clean

help:  ## Show the targets
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "  \033[1m%-12s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## Create .venv with the project, every extra and the development tools

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "compactory needs Python 3.11 or newer; name one with: make PYTHON=python3.12 …")'
	test -x $(UV) || { $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(sed -n 's/^\(uv==[0-9.]*\).*/\1/p' constraints.txt)"; }
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r constraints.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps -e .
	@touch $@

demo: $(STAMP)  ## The whole path on an embedded Postgres and broker
	$(BIN)/compactory demo

test: $(STAMP)  ## Short tests, in JOBS=5 processes (Apache Kafka is used where Java and Maven are present)
	@test -d tests/__pycache__ || $(BIN)/pytest --collect-only -q >/dev/null || true  # or each process compiles all tests
	$(BIN)/pytest -m "not proof" -n $(JOBS) --dist loadfile --max-worker-restart 2 --durations 10

check: $(STAMP)  ## What CI runs: lint, layers and lowest versions, then types beside the tests
	$(MAKE) --no-print-directory --jobs 2 lint layers lowest types test

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/plain_words.py

types: $(STAMP)
	$(BIN)/mypy
	$(BIN)/basedpyright

layers: $(STAMP)
	$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports

lowest: $(STAMP)  ## The oldest direct dependencies that pyproject.toml allows: every module, some commands
	$(BIN)/python scripts/lowest_versions.py

proof: $(STAMP)  ## The long proofs: histories, chaos, soak (PROOF_SECONDS=60 each), image, spark-submit
	$(BIN)/pytest -m proof --timeout 3600 -o faulthandler_timeout=0

versions: $(STAMP)  ## Tests of what meets servers, on PostgreSQL VERSIONS="13 … 17", then on Apache Kafka KAFKAS="3.3.2 3.9.1"
	for version in $(VERSIONS); do TEST_POSTGRES=$$version $(BIN)/pytest -m "not proof" -n $(JOBS) --dist loadfile \
	  tests/sql tests/connect tests/source tests/outbox tests/jobs tests/sink tests/spark/test_to_postgres.py || exit 1; done
	for version in $(KAFKAS); do TEST_KAFKA=$$version $(BIN)/pytest -m "kafka and not proof" -n $(JOBS) --dist loadfile \
	  tests/store tests/kafka tests/api tests/processors tests/outbox tests/jobs tests/sink tests/source || exit 1; done

bench: $(STAMP) $(PEERS)  ## Benchmarks beside bare loops and peers, as ratios (ARGS="--full": 10 M entries)
	$(BIN)/python -m benchmarks $(ARGS) || failed=1; $(BIN)/python -m benchmarks report && exit $${failed:-0}

$(PEERS): $(STAMP) benchmarks/constraints.txt
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r benchmarks/constraints.txt
	@touch $@

docs: $(STAMP)  ## Write docs/reference from the code, and the site into build/site
	$(BIN)/python -m docs.generate
	$(BIN)/python scripts/site.py

screenshots: $(STAMP)  ## Take the pictures of the console for docs/ (Debian: apt-get install chromium)
	$(BIN)/python scripts/screenshots.py

dist: $(STAMP)  ## Build and check the wheel and the source archive in dist/
	rm -rf dist
	$(UV) build --quiet
	$(BIN)/twine check --strict dist/*

sbom: $(STAMP)  ## List the packages of `compactory[all]` in build/sbom.json (CycloneDX)
	$(UV) venv --quiet --clear build/sbom
	$(UV) pip install --quiet --python build/sbom/bin/python --constraints constraints.txt '.[all]'
	$(UV) tool run --quiet --from cyclonedx-bom==7.5.0 cyclonedx-py environment build/sbom/bin/python --pyproject pyproject.toml -o build/sbom.json

format: $(STAMP)  ## Format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

constraints: $(STAMP)  ## Compile constraints.txt afresh from pyproject.toml
	$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-header --no-annotate --upgrade --all-extras --group dev -o constraints.txt pyproject.toml
	$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --no-header --no-annotate --upgrade --group pyproject.toml:bench -c constraints.txt -o benchmarks/constraints.txt

clean:  ## Remove everything that was built (.venv too)
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache benchmarks/out .compactory
