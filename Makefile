# Every target sets up what it needs and may be run again; `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
VENV ?= .venv
# The one place that pins torch. Options for pip may follow it: make TORCH="torch==2.13.0 --index-url ..."
TORCH ?= torch==2.13.0
# More options for `aegis train`: make demo ARGS="--text ~/notes --steps 500"
ARGS ?=
JOBS ?= $(shell nproc)
# For each fuzzer of `make fuzz`.
FUZZ_SECONDS ?= 30
# Of `make search`.
ROUNDS ?= 5

export PATH := $(abspath $(VENV))/bin:$(PATH)
export PYTHON
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

STAMP := $(VENV)/stamp
comma := ,
PIP := $(VENV)/bin/python -m pip install --quiet
CPP := $(shell find csrc tests/cpp tests/fuzz tests/simt benchmarks/cpp -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' 2>/dev/null)
# Folders count too: a removed file changes the time of its folder.
SOURCES := $(shell find csrc cmake python -not -path '*/__pycache__*') CMakeLists.txt setup.py version.txt

.PHONY: help setup build demo generate speculate soak test search cpp-test lint docs sanitize asan tsan fuzz cuda mutations bench clean FORCE

help:
	@echo "make demo      build aegis, train a small GPT on text, draw its loss curve (ARGS=... for aegis train)"
	@echo "make soak      two minutes of training through aegis and through DataLoader each, and a report of what drifts"
	@echo "make generate  text from the model of make demo, beside model.generate (ARGS=... for examples/generate.py)"
	@echo "make speculate a larger model and a draft that guesses for it: trains both, then text with and without the draft"
	@echo "make test      every test: GoogleTest and pytest"
	@echo "make search    $(ROUNDS) rounds of the random tests with examples that are new each time (ROUNDS=...)"
	@echo "make lint      ruff, mypy, clang-format, layer check"
	@echo "make docs      the documentation, into build/docs/html (Sphinx; a warning is an error)"
	@echo "make sanitize  tests under Address-, UB- and ThreadSanitizer"
	@echo "make fuzz      every file parser under libFuzzer, $(FUZZ_SECONDS) seconds each (FUZZ_SECONDS=...)"
	@echo "make cuda      every CUDA kernel for every architecture (nvcc, no GPU), and the plan of tools/gpu_check.sh"
	@echo "make mutations breaks the CUDA kernels to see whether their tests notice (minutes)"
	@echo "make bench     every benchmark; writes benchmarks/README.md (ARGS=--quick to see that they run)"
	@echo "make setup | build | clean"

# --- environment ------------------------------------------------------------------------------------------------

$(STAMP)/venv:
	@tools/system_packages.sh --required python3-venv python3-dev
	@echo "== virtual environment: $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMP) && touch $@

# First and alone, so that no other package's wish decides which torch comes. Another TORCH installs again.
ifneq ($(TORCH),$(shell cat $(STAMP)/torch 2>/dev/null))
$(STAMP)/torch: FORCE
endif
$(STAMP)/torch: $(STAMP)/venv
	@echo "== installing $(TORCH)"
	@$(PIP) $(TORCH)
	@echo '$(TORCH)' > $@

# $(STAMP)/deps-GROUP: a group of pyproject.toml; "build" is what building and running need.
$(STAMP)/deps-%: pyproject.toml tools/requirements.py $(STAMP)/torch
	@echo "== installing what '$*' needs"
	@$(VENV)/bin/python tools/requirements.py $* > $(STAMP)/requirements-$*.txt
	@$(PIP) -r $(STAMP)/requirements-$*.txt
	@touch $@

setup: $(STAMP)/deps-build

# setuptools would put files that were removed since into the wheel: they are still in build/lib.
$(STAMP)/build: $(SOURCES) pyproject.toml $(STAMP)/deps-build
	@echo "== building aegis"
	@rm -rf build/lib* build/bdist*
	@$(PIP) --no-build-isolation --no-deps --force-reinstall .
	@touch $@

build: $(STAMP)/build

# --- what the README tells --------------------------------------------------------------------------------------

# Threads of OpenMP that spin for each other take ten times as long as soon as anything else runs on the machine.
demo soak test search asan: export OMP_WAIT_POLICY ?= PASSIVE

demo: $(STAMP)/build $(STAMP)/deps-demo
	@echo "== training a small GPT through aegis.FlatArenaDataLoader: about two minutes on two cores"
	@$(VENV)/bin/aegis train --out demo $(if $(filter --compare --resume,$(ARGS)),,--chain) $(ARGS)

soak: $(STAMP)/build $(STAMP)/deps-demo
	@$(VENV)/bin/aegis soak --minutes 2 --out soak $(ARGS)

generate: demo/checkpoint.pt $(STAMP)/build $(STAMP)/deps-generate
	@$(VENV)/bin/python examples/generate.py --checkpoint $< $(ARGS)

# ARGS=... for examples/speculative.py. Trains once: 18 minutes on two cores.
speculate: $(STAMP)/build $(STAMP)/deps-generate
	@$(VENV)/bin/python examples/speculative.py $(ARGS)

demo/checkpoint.pt:
	@$(MAKE) --no-print-directory demo ARGS=

# `make test` takes the same random examples every time, so that a change is judged by the change alone. These are new.
search: $(STAMP)/build $(STAMP)/deps-test $(STAMP)/deps-frameworks
	@echo "== random tests, $(ROUNDS) rounds of new examples"
	@for round in $$(seq $(ROUNDS)); do \
	  $(VENV)/bin/python -m pytest -q -m hypothesis --hypothesis-profile=search || exit 1; done

test: cpp-test $(STAMP)/deps-test $(STAMP)/deps-frameworks
	@tools/system_packages.sh libmimalloc2.0 libjemalloc2
	@echo "== Python tests, on the installed wheel"
	@$(VENV)/bin/python -m pytest -q

cpp-test: $(STAMP)/build
	@tools/system_packages.sh libgtest-dev libboost-context-dev
	@echo "== C++ tests"
	@cmake -S . -B build/cmake -DAEGIS_TESTS=ON > build/configure.log || { cat build/configure.log; exit 1; }
	@cmake --build build/cmake
	$(call ctest,cmake)

# Quiet but for the tests that fail.
define ctest
	@ctest --test-dir build/$(1) --output-on-failure --no-tests=error -j $(JOBS) > build/$(1)/ctest.log \
	  || { grep -vE '^ +Start +[0-9]+|^ *[0-9]+/[0-9]+ Test .* Passed' build/$(1)/ctest.log; exit 1; }
	@grep -E "tests passed|^Total Test time" build/$(1)/ctest.log
endef

lint: $(STAMP)/deps-build $(STAMP)/deps-lint
	@echo "== lint"
	@ruff check .
	@ruff format --check .
	@mypy
	@clang-format --dry-run -Werror $(CPP)
	@$(VENV)/bin/python tools/check_layers.py

# From the installed package, whose docstrings are most of it. Decoding cannot be imported without transformers.
docs: $(STAMP)/build $(STAMP)/deps-docs $(STAMP)/deps-generate
	@echo "== documentation"
	@rm -rf build/docs
	@$(VENV)/bin/python -m sphinx --builder html --fail-on-warning --keep-going --quiet \
	  --doctree-dir build/docs/doctrees docs build/docs/html
	@echo "docs: build/docs/html/index.html, $$(find build/docs/html -name '*.html' | wc -l) pages without a warning"

# --- sanitizers: core and kernels in C++, and tests/python/test_sanitized.py ---------------------------------

sanitize: asan tsan

# One build for both: the wheel goes into a folder of its own, which PYTHONPATH puts before the installed one.
define sanitized_build
	@tools/system_packages.sh libgtest-dev libboost-context-dev
	@echo "== building with -fsanitize=$(2)"
	@rm -rf build/$(1)/site build/lib* build/bdist*
	@AEGIS_BUILD_DIR=$(CURDIR)/build/$(1) AEGIS_CUDA=OFF CXXFLAGS="-O1 -g1" \
	  AEGIS_CMAKE_ARGS="-DAEGIS_SANITIZE=$(2) -DAEGIS_TESTS=ON -DCMAKE_BUILD_TYPE=None" \
	  $(PIP) --no-build-isolation --no-deps --target build/$(1)/site .
endef
# Only one copy of the run-time libraries may be loaded, and it must come before Python's.
preload = $(foreach library,$(1),$(shell $${CXX:-g++} -print-file-name=$(library)))

asan: export ASAN_OPTIONS := detect_stack_use_after_return=1
asan: export UBSAN_OPTIONS := halt_on_error=1:print_stacktrace=1
asan: $(STAMP)/deps-build $(STAMP)/deps-test
	$(call sanitized_build,asan,address$(comma)undefined)
	$(call ctest,asan)
	@PYTHONPATH=build/asan/site LD_PRELOAD="$(call preload,libasan.so libstdc++.so)" \
	  ASAN_OPTIONS=$$ASAN_OPTIONS:detect_leaks=0 \
	  $(VENV)/bin/python -m pytest -q -p no:cacheprovider tests/python/test_sanitized.py

tsan: export TSAN_OPTIONS := halt_on_error=1:suppressions=$(CURDIR)/tools/tsan.supp:ignore_noninstrumented_modules=1
tsan: $(STAMP)/deps-build $(STAMP)/deps-test
	$(call sanitized_build,tsan,thread)
	$(call ctest,tsan)
	@PYTHONPATH=build/tsan/site LD_PRELOAD="$(call preload,libtsan.so)" OMP_NUM_THREADS=1 \
	  $(VENV)/bin/python -m pytest -q -p no:cacheprovider tests/python/test_sanitized.py

# --- fuzzing: file parsers, with Address- and UBSanitizer; no torch ------------------------------------------------

FUZZERS := $(patsubst tests/fuzz/fuzz_%.cpp,%,$(wildcard tests/fuzz/fuzz_*.cpp))

fuzz: $(STAMP)/deps-build
	@tools/system_packages.sh clang
	@tools/system_packages.sh libclang-rt-dev
	@echo "== fuzzing file parsers, $(FUZZ_SECONDS) seconds each"
	@if ! command -v clang++ > /dev/null; then echo "left out: clang++ was not found"; else \
	  mkdir -p build/fuzz && $(VENV)/bin/python tests/fuzz/make_seeds.py build/fuzz/seeds && \
	  { cmake -S . -B build/fuzz -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=None -DAEGIS_FUZZ=ON \
	      -DAEGIS_PYTHON=OFF -DAEGIS_CUDA=OFF > build/fuzz/configure.log || { cat build/fuzz/configure.log; exit 1; }; } && \
	  cmake --build build/fuzz --target fuzzers > build/fuzz/build.log || { cat build/fuzz/build.log; exit 1; } && \
	  printf '%s\n' $(FUZZERS) | xargs -P $(JOBS) -I NAME tools/fuzz.sh build/fuzz NAME $(FUZZ_SECONDS); fi

# --- CUDA without a GPU; with one, tools/gpu_check.sh ---------------------------------------------------------------

cuda: $(STAMP)/build
	@echo "== CUDA kernels, compiled for every architecture"
	@if ! command -v nvcc > /dev/null; then echo "left out: nvcc was not found"; else \
	  tools/cuda_matrix.py --jobs $(JOBS); \
	  [ "$${AEGIS_CUDA:-AUTO}" = OFF ] || tools/cuda_matrix.py --library build/cmake/libaegis.so; fi
	@mkdir -p build
	@tools/gpu_check.sh --dry-run > build/gpu_check.log || { cat build/gpu_check.log; exit 1; }
	@tail -n 1 build/gpu_check.log

mutations: cpp-test
	@cmake --build build/cmake --target aegis_simt_sanitized
	@tools/simt_mutations.py --jobs $(JOBS)

# --- measuring -----------------------------------------------------------------------------------------------------

bench: $(STAMP)/build $(STAMP)/deps-demo
	@tools/system_packages.sh libbenchmark-dev
	@cmake -S . -B build/cmake -DAEGIS_BENCHMARKS=ON > build/configure.log || { cat build/configure.log; exit 1; }
	@cmake --build build/cmake
	@$(VENV)/bin/python benchmarks/python/run.py --cpp build/cmake $(ARGS)

clean:
	rm -rf build dist demo soak python/*.egg-info $(STAMP)/build
