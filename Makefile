# Two commands: `make quickstart` and `make test`. Each makes its own virtual environment.
PYTHON ?= python3
SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help quickstart test test-slow test-torch test-dist coverage lint libraries docs wheel sdist clean

# One worker more than there are cores, because tests wait for browsers and time limits; at most four. Tests marked
# `alone` run while the other workers wait. Bytecode is kept, also where PYTHONDONTWRITEBYTECODE is set: otherwise each
# worker compiles all tests again, and each process that a test starts compiles this package. glibc overwrites freed
# memory, so that code which reads it, through IREE's bindings for example, fails at once and not once in a while. numpy's
# threads sleep after a product: otherwise they spin for 25 ms, on a core that another worker could use.
WORKERS = $(shell $(PYTHON) -c 'import os; print(min(4, 1 + len(os.sched_getaffinity(0))))')
PYTEST = PYTHONDONTWRITEBYTECODE= MALLOC_PERTURB_=165 OPENBLAS_THREAD_TIMEOUT=4 \
    .venv-test/bin/python -m pytest -n $(WORKERS) --dist=worksteal

help:
	@echo "make quickstart  generate, compile and profile a small sweep on this CPU; leaves data.csv"
	@echo "make test        the test suite (some 10 minutes on 2 cores)"
	@echo "make test-slow   the same with the slow tests"
	@echo "make test-torch  the tests of PyTorch with another version: TORCH=2.6.0"
	@echo "make test-dist   install the wheel and the sdist in fresh environments, and run them"
	@echo "make coverage    the test suite, with a table of what it does not execute"
	@echo "make lint        ruff, mypy, import-linter, word list"
	@echo "make libraries   every entry of the shipped libraries is valid and of the installed compiler"
	@echo "make docs        build/site: these documents as a site, with a reference made from the code"
	@echo "make wheel       dist/dispatch_profiler-VERSION-py3-none-any.whl, to install without a checkout"
	@echo "make sdist       dist/dispatch_profiler-VERSION.tar.gz: the package, its documents and the three scripts"

# A stamp a kind of environment: made again when the project's dependencies change.
.venv/stamp: setup.cfg pyproject.toml
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --upgrade pip
	.venv/bin/python -m pip install -qq --editable .
	touch $@

.venv-test/stamp: setup.cfg pyproject.toml tests/constraints.txt
	$(PYTHON) -m venv .venv-test
	.venv-test/bin/python -m pip install --quiet --upgrade pip
	.venv-test/bin/python -m pip install -qq --constraint tests/constraints.txt --editable '.[test,lint,docs]'
	touch $@

quickstart: .venv/stamp
	.venv/bin/python generator.py --op-kind=matmul,batch_matmul,conv2d --lhs=f32 \
	    --problem-m=100,256 --problem-n=512 --problem-k=128 --batch-count=4 \
	    --conv-n=1 --conv-h=28 --conv-w=28 --conv-c=64 --conv-k=64 --conv-padding=1
	.venv/bin/python compile.py
	.venv/bin/python profiler.py --format=table --output=data.csv

test: .venv-test/stamp
	$(PYTEST) $(ARGS)

test-slow: .venv-test/stamp
	$(PYTEST) -m 'slow or not slow' --hypothesis-profile=explore $(ARGS)

# Triton, which the `test` extra has besides `tests`, comes with a version of torch.
TORCH = 2.6.0
test-torch:
	$(PYTHON) -m venv .venv-torch
	.venv-torch/bin/python -m pip install --quiet --upgrade pip
	.venv-torch/bin/python -m pip install -qq torch==$(TORCH) --editable '.[tests]'
	PYTHONDONTWRITEBYTECODE= MALLOC_PERTURB_=165 OPENBLAS_THREAD_TIMEOUT=4 .venv-torch/bin/python -m pytest -n $(WORKERS) --dist=worksteal \
	    tests/boo tests/operations tests/profiler/providers $(ARGS)

coverage: .venv-test/stamp
	$(PYTEST) --cov --cov-report=term $(ARGS)

lint: .venv-test/stamp
	.venv-test/bin/ruff check .
	.venv-test/bin/ruff format --check .
	.venv-test/bin/mypy
	.venv-test/bin/lint-imports
	.venv-test/bin/python scripts/check_words.py --strict

libraries: .venv-test/stamp
	set -e; for name in $$(.venv-test/bin/dispatch-profiler library list | cut -d' ' -f1); do \
	    .venv-test/bin/dispatch-profiler library check "$$name" --any-cpu; done

# Without a network, in an environment with everything that the code imports. The reference changes with the code, so all
# pages are read anew.
docs: .venv-test/stamp
	.venv-test/bin/python -m sphinx --fresh-env --fail-on-warning --keep-going --quiet -d build/doctrees docs build/site
	@echo build/site/index.html

# Nothing but pip and build; both fetch the setuptools that pyproject.toml asks for.
.venv-build/stamp:
	$(PYTHON) -m venv .venv-build
	.venv-build/bin/python -m pip install -qq --disable-pip-version-check build
	touch $@

# setuptools adds to the folder `build` and packs all of it, also modules that have moved since an earlier build.
wheel: .venv-build/stamp
	rm -rf build
	.venv-build/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	@ls dist/*.whl

sdist: .venv-build/stamp
	.venv-build/bin/python -m build --sdist >/dev/null
	@ls dist/*.tar.gz

test-dist: wheel sdist
	PYTHON=$(PYTHON) .ci/test-dist

clean:
	rm -rf .venv .venv-test .venv-torch .venv-build build dist *.egg-info generated one data.csv data.jsonl
