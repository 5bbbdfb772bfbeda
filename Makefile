# The commands of daily work; .ci/run uses the same ones.
PYTHON ?= python
PROJECTS := . ./kernels ./backends/cpu ./plugins/deepseek ./plugins/dflash ./plugins/llama ./plugins/tiny ./plugins/xgrammar

.PHONY: install test lint format stubs reference wheels clean

install:  ## everything, editable, with the tools for working on it
	$(PYTHON) -m pip install -r requirements.txt -r requirements-dev.txt

test:
	$(PYTHON) -m pytest -q

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) tools/stubs.py --check
	$(PYTHON) tools/reference.py --check

format:
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

stubs:  ## regenerate deepinfer_core/_C.pyi from the built module
	$(PYTHON) tools/stubs.py

reference:  ## regenerate docs/reference from the seams' source
	$(PYTHON) tools/reference.py

wheels:  ## one wheel per distribution, in dist/
	$(PYTHON) -m pip wheel --no-deps --wheel-dir dist $(PROJECTS)

clean:
	rm -rf build dist kernels/build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
