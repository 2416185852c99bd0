# The verbs of the project. `make demo` and `make test` are all a newcomer needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP     = PIP_CONSTRAINT=$(CURDIR)/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip
STAMP  := $(VENV)/.octavo
NATIVE := $(shell find csrc CMakeLists.txt pyproject.toml -type f 2>/dev/null)
