# Works from a fresh clone with python ≥ 3.10, pip and make. An existing .venv is used as it is and only completed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Two processes of one thread: small models gain nothing from more.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2

# Waiting threads give the core back: decisive where processes share cores.
export OMP_WAIT_POLICY := passive
export TOKENIZERS_PARALLELISM := false

.PHONY: quickstart test check slow clusters peers format clean

quickstart: $(VENV)/installed-demo  ## the whole pipeline on a laptop's CPU
	$(BIN)/python -m rlhf.run --config experiments/quickstart.yaml

test: $(VENV)/installed-test  ## the quick tests
	$(PYTEST) -m "not slow"

check: $(VENV)/installed-dev  ## everything a change must pass
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(MAKE) test

slow: $(VENV)/installed-test  ## the tests that take minutes
	$(PYTEST) -m slow

clusters: $(VENV)/installed-test $(VENV)/installed-ray  ## grids on a real Slurm and Ray; as root, with Debian's slurm-wlm and munge
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -rs tests/grid/executors

peers: $(VENV)/installed-test $(VENV)/installed-peers  ## compares with published implementations (docs/peers.md)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps verl==0.9.1
	rm -rf $(VENV)/lib/python*/site-packages/tests  # of verl: it would stand in the place of ours
	$(PYTEST) -m peers

format: $(VENV)/installed-dev  ## puts the source into the form that `check` wants
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## removes what tests and tools leave; runs/ and .venv stay
	rm -rf .pytest_cache .ruff_cache build *.egg-info
	find rlhf tests -name __pycache__ -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed; say which: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

# A stamp per extra: newer than pyproject.toml and constraints.txt means that nothing has to be installed.
$(VENV)/installed-%: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$*]'
	@touch $@
