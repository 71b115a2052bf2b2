# make lab    open the course          make test       run the checks that take minutes; make test-all: all of them
#                                      make test-faults, test-banks, ...: one part of the rest
# make bench  measure, write tables    make notebooks  run the lessons, store their outputs
#                                      make exercises  make the exercises from the solutions, run both
# make site   build the website        make teaching   mark the lessons' slides, write docs/teaching
#                                      make links      visit the website's links that lead elsewhere

# Compiled modules are kept: the tests start Python some hundred times.
export PYTHONDONTWRITEBYTECODE :=

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
LEARN  := $(VENV)/.ready-to-learn
READY  := $(VENV)/.ready

PARTS := faults live banks grading browser clusters site long
TESTS := $(PARTS:%=test-%)

.PHONY: lab test test-all $(TESTS) style lint bench notebooks exercises teaching site links setup clean

lab: $(LEARN)
	@$(BIN)/course lab

# Every lesson, and the tests that prove what users rely on: about ten minutes on two cores. tests/README.md has the rest.
test: style
	$(BIN)/python -m tests.parts --together lessons pages core

# Everything, in parts; one that has passed is skipped until something that it depends on changes. FRESH=1 runs all.
test-all: lint test
	$(BIN)/python -m tests.parts $(PARTS)

# What `make test` leaves out of one part.
$(TESTS): test-%: setup
	$(BIN)/python -m tests.parts $*

style: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

lint: style $(VENV)/.types-checked
	$(BIN)/python -m tests.budgets

# It takes forty seconds: not again for what was found good.
$(VENV)/.types-checked: $(READY) $(shell find course_lib -name '*.py')
	$(BIN)/basedpyright
	@touch $@

bench: .venv-bench/.ready
	.venv-bench/bin/python -m tests.benchmarks.launch_latency
	.venv-bench/bin/python -m tests.benchmarks.live_ranks
	.venv-bench/bin/python -m tests.benchmarks.data_parallel
	.venv-bench/bin/python -m tests.benchmarks.pipeline
	.venv-bench/bin/python -m tests.benchmarks.planner
	.venv-bench/bin/python -m tests.benchmarks.checkpoints
	.venv-bench/bin/python -m tests.benchmarks.grading

# Run every lesson and store what it prints and draws.
notebooks: setup
	$(BIN)/python -m course_lib.authoring refresh notebooks/*.ipynb
	$(BIN)/python -m course_lib.authoring slides notebooks/*.ipynb

# Run every solution, and make of it what a learner gets.
exercises: setup
	$(BIN)/python -m course_lib.authoring exercises solutions/*.ipynb

# What begins a slide, into the lessons' metadata; the instructor's pages, from lessons, predictions and notes.
teaching: setup
	$(BIN)/python -m course_lib.authoring slides notebooks/*.ipynb
	$(BIN)/python -m course_lib.classroom.teaching

# The website, in build/site. Nothing is executed: lessons show what is stored in them.
site: setup
	$(BIN)/python docs/build.py

# Links that lead out of the site: this takes a network.
links: setup
	$(BIN)/python docs/build.py --links

setup: $(READY)

# What a learner needs, and no more: nbgrader's menus, for one, would stand in the lab.
$(LEARN): pyproject.toml constraints.txt
	@echo "Setting up $(VENV): PyTorch and JupyterLab are large, this takes a few minutes the first time."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e .
	@touch $@

# And what the tests need.
$(READY): $(LEARN)
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e ".[test]"
	@touch $@

.venv-bench/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/pip install --disable-pip-version-check -c constraints.txt -e ".[bench]"
	@touch $@

clean:
	rm -rf $(VENV) .venv-bench build dist tests/browser/seen
