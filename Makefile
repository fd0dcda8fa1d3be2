# Two commands: `make demo` trains a policy, here and in another process, and draws its curve, `make test` runs the whole test suite.
# Both make .venv on first use; a second run installs nothing.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv pip install --quiet --constraint constraints.txt
PINS := pyproject.toml setup.cfg constraints.txt
TRAINERS := sb3 tianshou torchrl agilerl rllib smolagents trl cookbook tinker_oldest openenv openenv_core agilerl_openenv language browser verifiers_v0 verifiers_v1 model_clients suites
JOBS ?= 4

# What Python compiles it keeps, whatever the shell says: the tests start hundreds of processes that import the same.
unexport PYTHONDONTWRITEBYTECODE
# In tests NumPy has one thread a process: more cost each of these processes time.
test coverage: export OPENBLAS_NUM_THREADS := 1

IMAGES := base core lineworld codefix echo codeact coding repl gsm8k swebench-loc swebench-patch
# Images that are also tagged :openenv, each with the ID that OpenEnv's clients find at its root.
OPENENV := core=envweave/Counter-v0 lineworld=envweave/LineWorld-v0 codefix=envweave/CodeFix-v0 echo=envweave/Echo-v0 \
	codeact=envweave/CodeAct-v0 coding=envweave/Coding-v0 repl=envweave/REPL-v0
BUILD ?= docker build --quiet

.PHONY: demo test coverage lint type bench docs trainers $(TRAINERS:%=trainers-%) floor peer images cluster-test clean

demo: $(VENV)/.demo
	$(BIN)/python -m envweave_gym.training.lineworld
	$(BIN)/python -m envweave_gym.training.lineworld --backend subprocess --out runs/elsewhere

PYTEST := -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

test: $(VENV)/.dev
	$(BIN)/python $(PYTEST)

# The same suite, which then takes a third longer, and how much of the code it ran.
coverage: $(VENV)/.dev
	$(BIN)/coverage erase
	$(BIN)/coverage run $(PYTEST)
	$(BIN)/coverage combine --quiet
	@echo "lines covered: $$($(BIN)/coverage report --format=total) % ($(BIN)/coverage report lists the others)"

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python .ci/words

type: $(VENV)/.dev
	$(BIN)/pyright

bench: $(VENV)/.dev $(VENV)/.bench
	$(BIN)/python -m benchmarks

# Not --quiet: what mkdocs does not print it does not count, and --strict then lets dead links pass.
docs: $(VENV)/.dev
	$(BIN)/python .ci/derived_docs.py
	$(BIN)/mkdocs build --strict

# openenv and openenv_core are two releases of OpenEnv, with two of MCP, in which the same tests run.
# With --jobs=2 one installs or waits while another computes. The cache of `make test` stays as it is.
trainers: $(TRAINERS:%=trainers-%)

$(TRAINERS:%=trainers-%): trainers-%: .venv-trainers/%/.ready
	.venv-trainers/$*/bin/python -m pytest -m trainers -p no:cacheprovider tests/trainers/test_$(*:_core=)*.py

# The images of docker/Dockerfile; BUILD="docker build --network host" where only the machine itself reaches the network.
images:
	for name in $(IMAGES); do $(BUILD) --file docker/Dockerfile --target $$name --tag envweave-$$name . || exit 1; done
	for pair in $(OPENENV); do $(BUILD) --file docker/Dockerfile --target openenv --tag envweave-$${pair%%=*}:openenv \
		--build-arg OPENENV=$${pair%%=*} --build-arg DEFAULT=$${pair#*=} . || exit 1; done

# The tests of Kubernetes and the kit on a real cluster of one node, which is built and started: see .ci/cluster.
cluster-test: $(VENV)/.dev
	folder=$$(.ci/cluster start) && ENVWEAVE_CLUSTER=$$folder $(BIN)/python -m pytest tests/providers/test_cluster.py \
		tests/providers/test_kubernetes*.py tests/cli/test_cli_sweep.py tests/testing/test_conformance_kubernetes.py $(PYTEST_ARGS)

# The peers of the benchmarks openenv, remote and sandbox; openenv needs no more than this.
peer: .venv-peer/.ready $(VENV)/.demo

.venv-peer/.ready: Makefile | $(VENV)/.base
	$(PYTHON) -m venv --clear .venv-peer
	$(BIN)/uv pip install --quiet --python .venv-peer/bin/python openenv==0.10.0 smolagents==1.26.0 ipykernel==7.4.0
	touch $@

# Tests of spaces, vectors and remote environments with the lowest Gymnasium that pyproject.toml allows.
floor: export OPENBLAS_NUM_THREADS := 1
floor: .venv-floor/.ready
	.venv-floor/bin/python -m pytest --numprocesses $(JOBS) --dist loadfile \
		tests/core/test_spaces*.py tests/registry/test_ids.py tests/episode tests/wrappers/test_request_stream*.py \
		tests/vector/test_vector*.py tests/vector/test_row_groups.py \
		tests/testing/test_conformance.py tests/remote/test_remote_env.py tests/remote/test_remote_vector*.py

clean:
	rm -rf $(VENV) .venv-trainers .venv-floor .venv-peer .venv-mcp build dist site runs *.egg-info

$(VENV)/.base:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check uv
	touch $@

$(VENV)/.demo: $(PINS) | $(VENV)/.base
	$(UV) --editable '.[demo,server]'
	touch $@

# Torch comes first and by pip, at the exact pin: an open range would pull gigabytes of CUDA packages.
$(VENV)/.torch: constraints.txt | $(VENV)/.base
	$(BIN)/pip install --quiet --disable-pip-version-check $(shell grep '^torch==' constraints.txt)
	touch $@

$(VENV)/.dev: $(PINS) $(VENV)/.torch
	$(UV) --editable '.[dev]'
	touch $@ $(VENV)/.demo

$(VENV)/.bench: $(VENV)/.dev
	$(UV) --editable '.[bench]'
	touch $@

# Torch comes by pip, as above, where the list names it.
.venv-trainers/%/.ready: tests/trainers/%.txt $(PINS) | $(VENV)/.base
	$(BIN)/uv venv --quiet --clear --seed --python $(PYTHON) .venv-trainers/$*
	! grep -q '^torch==' $< || .venv-trainers/$*/bin/pip install --quiet --disable-pip-version-check "$$(grep '^torch==' $<)"
	$(BIN)/uv pip install --quiet --python .venv-trainers/$*/bin/python \
		--override tests/trainers/overrides.txt --requirement tests/trainers/$*.txt --editable '.[server]'
	touch $@

.venv-floor/.ready: $(PINS) | $(VENV)/.base
	$(PYTHON) -m venv .venv-floor
	$(BIN)/uv pip install --quiet --python .venv-floor/bin/python --editable '.[server]' \
		'gymnasium==1.1.1' pytest pytest-timeout pytest-xdist hypothesis psutil
	touch $@
