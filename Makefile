PYTHON ?= python
.PHONY: check test golden figures bench

check:  ## format, lint, types and the fast tests
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy
	$(PYTHON) -m pytest -q -n auto -m "not slow and not ranks"

test:  ## everything
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy
	$(PYTHON) -m pytest -q

golden:  ## rewrite the golden files with what is found; read the diff before you commit it
	$(PYTHON) -m pytest -q --update-golden tests

figures:  ## redraw the pictures of the README
	$(PYTHON) -m experiments.figures

bench:  ## ops a second of both engines
	$(PYTHON) -m experiments.benchmarks.engines
