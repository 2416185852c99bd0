# The verbs of the project. `make demo` and `make test` are all a newcomer needs.
#
#   make demo    build, fetch the default model, serve it and ask it a question over HTTP
#   make test    run all tests            make check   style, types, import rule
#   make bench   measure this machine     make docs    list the modules in docs/architecture.md
#   make bench-serving   measure the server under load: 64 requests, 32 at a time
#   make bench-kernels   measure each kernel against this machine's limits (three minutes)
#   make soak-scheduler  a million random steps of the scheduler (half an hour)
#   make soak-memory     half an hour of mixed load: memory, pages on disk, descriptors
#   make bench-peers     Octavo beside other engines; PEERS=llama.cpp,openvino installs them first
#   make clean   remove what make made (fetched models and the peers in .peers stay)
#
# Everything is installed into .venv, at the versions in constraints.txt. Stamps in .venv/.octavo
# make a second call instant; a changed source builds again.

MODEL       ?= smollm2-135m
QUESTION    ?= What is the capital of France? Answer in one sentence.
PYTEST_ARGS ?=
BENCH_ARGS  ?=
SOAK_STEPS  ?= 1000000
SOAK_SECONDS ?= 1800

PEERS       ?=

# The first Python on the path that is new enough; PYTHON=... chooses another.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
            "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
            && echo "$$python" && break; done)

VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.octavo
WHEELS := build/wheels
SOURCES := $(shell find src csrc cmake CMakeLists.txt pyproject.toml constraints.txt LICENSE README.md \
             -type f -not -name '*.pyc' -not -name '*.so' 2>/dev/null)

# Relative, because pip splits this variable at spaces. Newer pips read the second one when they
# build, older ones the first.
PIP := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
       PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 $(BIN)/python -m pip
WHEEL = $$(ls $(WHEELS)/octavo-*.whl)

.PHONY: demo test check bench bench-serving bench-kernels soak-scheduler soak-memory bench-peers docs clean help
.DELETE_ON_ERROR:

help:
	@sed -n '3,11s/^# *//p' Makefile

demo: $(STAMP)/runtime
	@$(BIN)/octavo pull $(MODEL) >/dev/null
	@$(BIN)/octavo demo $(MODEL) --question '$(QUESTION)'
	@echo 'Try next:'
	@echo '  $(BIN)/octavo serve                                    serve it yourself'
	@echo '  $(BIN)/octavo chat                                     talk with it'
	@echo '  $(BIN)/octavo generate -p "Once upon a time" --seed 7  complete a text'
	@echo '  $(BIN)/octavo chat qwen2.5-coder-0.5b                  a better model (478 MB to fetch)'
	@echo '  $(BIN)/octavo --help                                   everything else'

test: $(STAMP)/test
	$(BIN)/python -m pytest $(PYTEST_ARGS)

check: $(STAMP)/check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=src $(BIN)/lint-imports

bench: $(STAMP)/runtime
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/scheduler.py
	$(BIN)/python -m benchmarks.memory layouts
	$(BIN)/python -m benchmarks.memory sharing
	$(BIN)/python -m benchmarks.memory prefix
	$(BIN)/python -m benchmarks.memory bookkeeping

bench-serving: $(STAMP)/runtime
	$(BIN)/python -m benchmarks.serving --serve $(MODEL) $(BENCH_ARGS)

bench-kernels: $(STAMP)/runtime
	$(BIN)/python -m benchmarks.kernels $(BENCH_ARGS)

soak-scheduler: $(STAMP)/test
	$(BIN)/python tests/soak_scheduler.py --steps $(SOAK_STEPS)

soak-memory: $(STAMP)/runtime
	$(BIN)/python benchmarks/soak_memory.py --seconds $(SOAK_SECONDS) --model $(MODEL)

bench-peers: $(STAMP)/runtime
	$(BIN)/python -m benchmarks.peers $(MODEL) $(if $(PEERS),--install --peers $(PEERS)) $(BENCH_ARGS)

docs:
	'$(PYTHON)' docs/list_modules.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache \
	       .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP)/python:
	@test -n '$(PYTHON)' || { echo 'Octavo needs Python 3.11 or newer: install it, or name one' \
	  'with make PYTHON=/path/to/python'; exit 1; }
	@'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo \
	  'Octavo needs Python 3.11 or newer; $(PYTHON) is older or missing'; exit 1; }
	@'$(PYTHON)' -c 'import os, sysconfig; p = sysconfig.get_path("include"); \
	  sys = __import__("sys"); sys.exit(not os.path.exists(os.path.join(p, "Python.h")))' || { \
	  echo 'The headers of $(PYTHON) are missing (on Debian and Ubuntu: apt install python3-dev)'; \
	  exit 1; }
	@command -v "$${CC:-cc}" >/dev/null && command -v "$${CXX:-c++}" >/dev/null || { echo \
	  'Octavo needs a C and C++17 compiler (on Debian and Ubuntu: apt install g++)'; exit 1; }
	@'$(PYTHON)' -c 'import ensurepip, venv' 2>/dev/null || { echo \
	  'The venv module is missing (on Debian and Ubuntu: apt install python3-venv)'; exit 1; }
	@echo 'making $(VENV) with $(PYTHON)'
	@'$(PYTHON)' -m venv $(VENV)
	@mkdir -p $(STAMP) && touch $@

# Build requirements (compiler driver, bindings) live in pip's own build environment only.
$(STAMP)/wheel: $(STAMP)/python $(SOURCES)
	@rm -rf $(WHEELS)
	@echo 'building the kernels and the wheel (takes some minutes)'
	@$(PIP) wheel --quiet --no-deps --wheel-dir $(WHEELS) .
	@touch $@

$(STAMP)/runtime: $(STAMP)/wheel
	@echo 'installing into $(VENV)'
	@$(PIP) install --quiet "$(WHEEL)"
	@# The version may be the same while the content is not.
	@$(PIP) install --quiet --no-deps --force-reinstall "$(WHEEL)"
	@touch $@

$(STAMP)/test: $(STAMP)/runtime
	@echo 'installing what the tests need (PyTorch among it)'
	@$(PIP) install --quiet "$(WHEEL)[test]"
	@touch $@

$(STAMP)/check: $(STAMP)/runtime
	@echo 'installing what the checks need'
	@$(PIP) install --quiet "$(WHEEL)[check]"
	@touch $@
