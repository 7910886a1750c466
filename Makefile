# Each target does its own set-up: a fresh machine needs make, git and Python 3.11 or newer, nothing else.

.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory

BIN := .venv/bin
READY := .venv/.ready
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url
IMAGE_LOCK := $(BIN)/uv pip compile --quiet --only-binary :all: --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
    --generate-hashes --no-emit-index-url --no-annotate --custom-compile-command "make lock" --constraint requirements.lock

DIST := dist

export PYTHON
# Tests start thousands of processes, and half of a start would be compiling.
unexport PYTHONDONTWRITEBYTECODE

##@ See it work
.PHONY: quickstart
quickstart: $(READY) ## agents through a whole local fleet, with one proxy killed on the way (2 minutes)
	@$(BIN)/python -m examples.quickstart $(ARGS)

.PHONY: tiny-rl
tiny-rl: sglang ## a complete small training run on a real SGLang on the CPU, with plot and parity check (10 GB, minutes)
	@$(BIN)/python -m examples.tiny_rl $(ARGS)

.PHONY: claude-code
claude-code: sglang ## rollouts of the real Claude Code with rewards, as a batch in PyTorch, on a simulated engine (10 GB, a minute)
	@$(BIN)/python -m examples.claude_code $(ARGS)

.PHONY: trl
trl: sglang ## GRPO by TRL on a real SGLang on the CPU, its rollouts in a fleet, checked row by row (10 GB, minutes)
	@$(BIN)/python -m examples.trainers.trl $(ARGS)

.PHONY: trainers
trainers: sglang ## rows against the classes of Tinker, verl, AReaL and TRL, in environments of their own (10 GB, a minute)
	@$(BIN)/python -m examples.trainers.classes $(ARGS)

##@ Check it (ARGS='-k tree' chooses tests of a part)
.PHONY: test
test: $(READY) ## style, types and tests/unit: no processes, no ports, nothing more to install (3 minutes)
	@$(if $(ARGS),,$(MAKE) style)
	@$(BIN)/python -m tests.run unit $(ARGS)

.PHONY: test-integration
test-integration: $(READY) ## fleets, proxies and commands as processes (10 minutes)
	@$(BIN)/python -m tests.run integration $(ARGS)

.PHONY: test-engine
test-engine: $(READY) ## against the real SGLang on the CPU (make sglang installs it)
	@$(BIN)/python -m tests.run engine $(ARGS)

.PHONY: test-cluster
test-cluster: $(READY) ## an API server, and the core of e2e/ on a cluster (Linux, root, Docker; make cluster compiles it)
	@$(BIN)/python -m tests.run cluster $(ARGS)

.PHONY: test-agents
test-agents: $(READY) ## agent frameworks, Claude Code, Codex and the lowest versions, fetched where they are not there
	@$(BIN)/python -m tests.run agents $(ARGS)

.PHONY: test-browser
test-browser: $(READY) ## the page in Chromium, commands in a terminal, types of the page's scripts
	@$(BIN)/python -m tests.run browser $(ARGS)

.PHONY: test-system
test-system: $(READY) ## system calls and full disks (root), Prometheus
	@$(BIN)/python -m tests.run system $(ARGS)

.PHONY: test-timing
test-timing: $(READY) ## what promises time or memory, kills, soak, crowds, planted faults: alone on a machine (an hour)
	@$(BIN)/python -m tests.timing $(ARGS)

.PHONY: test-all
test-all: sglang cluster ## every part, one after the other
	@status=0; for part in test test-integration test-engine test-cluster test-agents test-browser test-system test-timing; do \
	    $(MAKE) $$part || status=1; done; exit $$status

.PHONY: test-repeat
test-repeat: $(READY) ## a part again and again on a busy machine: ARGS="unit 20"; results go to tests/results
	@$(BIN)/python -m tests.repeat $(ARGS)

.PHONY: lint
lint: style ## style, types and which package may import which
	@$(BIN)/python -m toolchain.type_check

.PHONY: style
style: $(READY)
	@mkdir -p .cache
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/lint-imports --no-logo > .cache/imports.txt || { cat .cache/imports.txt; exit 1; }

.PHONY: faults
faults: $(READY) ## plant each fault of tests/timing/faults in a copy of the sources: its tests must fail there (minutes)
	@$(BIN)/python -m tests.timing.faults $(ARGS)

.PHONY: e2e
e2e: $(READY) cluster ## only the tests of e2e/: on a cluster created here, or on yours
	@$(BIN)/python -m e2e $(ARGS)

.PHONY: e2e-full
e2e-full: $(READY) cluster ## every scenario on a cluster, 45 minutes at a time; results go to e2e/results
	@$(BIN)/python -m e2e --full $(ARGS)

.PHONY: agents
agents: $(READY) ## every agent framework's own loop against a fleet (0.5 GB, minutes); writes docs/frameworks.md
	@$(BIN)/python -m tests.agents $(ARGS)

.PHONY: kills
kills: $(READY) ## 1,000 kills and stops of everything in a busy fleet (an hour)
	@$(BIN)/python -m tests.timing.kills $(ARGS)

.PHONY: fuzz
fuzz: $(READY) ## 100,000 valid and hostile requests against a fleet
	@$(BIN)/python -m tests.integration.fuzz $(ARGS)

.PHONY: bench
bench: $(READY) ## every figure of benchmarks/, compared with the gateway alone (under an hour)
	@$(BIN)/python -m benchmarks $(ARGS)

.PHONY: bench-rigs
bench-rigs: $(READY) ## the rigs of R1 and R2, theirs and ours (under an hour)
	@$(BIN)/python -m benchmarks --reference $(ARGS)

.PHONY: bench-quick
bench-quick: $(READY) ## a few figures from windows of 4 s, only to show that it works (under a minute)
	@$(BIN)/python -m benchmarks --quick $(ARGS)

.PHONY: pictures
pictures: $(READY) ## the pictures of README and docs, from a fleet that runs for them (needs Chromium and tmux, a minute)
	@$(BIN)/python -m tests.browser.pictures

##@ Work on it
.PHONY: setup
setup: $(READY) ## create .venv from requirements.lock

.PHONY: format
format: $(READY) ## rewrite the sources in the project's style
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .

.PHONY: lock
lock: $(READY) ## update the lock files (newest versions: ARGS=--upgrade)
	@$(LOCK) $(ARGS) --extra all --group dev pyproject.toml -o requirements.lock
	@$(LOCK) $(ARGS) toolchain/go.in -o toolchain/go.lock
	@$(LOCK) $(ARGS) tests/engine/sglang/requirements.in -o tests/engine/sglang/requirements.lock
	@for name in $(basename $(notdir $(wildcard tests/agents/environments/*.in))); do \
	    $(LOCK) $(ARGS) tests/agents/environments/$$name.in -o tests/agents/environments/$$name.lock || exit; done
	@$(LOCK) $(ARGS) --constraint tests/engine/sglang/requirements.lock examples/trainers/environments/trl.in \
	    -o examples/trainers/environments/trl.lock
	@for name in tinker verl areal; do \
	    $(LOCK) $(ARGS) --no-deps examples/trainers/environments/$$name.in \
	    -o examples/trainers/environments/$$name.lock || exit; done
	@for peer in litellm sglang_router; do \
	    $(LOCK) $(ARGS) benchmarks/peers/$$peer.in -o benchmarks/peers/$$peer.lock || exit; done
	@$(IMAGE_LOCK) --extra proxy --extra otel pyproject.toml images/init.in -o images/proxy.lock
	@for extra in operator engine; do \
	    $(IMAGE_LOCK) --extra $$extra pyproject.toml images/init.in -o images/$$extra.lock || exit; done
	@$(IMAGE_LOCK) images/gateway.in images/init.in -o images/gateway.lock
	@$(IMAGE_LOCK) images/installer.in -o images/installer.lock

.PHONY: crd
crd: $(READY) ## regenerate crds/ and the chart's copy after a change of rolloutfleet/spec*.py
	@$(BIN)/python -m rolloutfleet_operator.crd > .crd && mv .crd crds/rolloutfleets.rolloutfleet.dev.yaml
	@cp crds/rolloutfleets.rolloutfleet.dev.yaml charts/rolloutfleet/files/

.PHONY: chart
chart: $(READY) ## regenerate the chart's files, alert rules, dashboard and examples/kubernetes/operator.yaml
	@$(BIN)/python -m monitoring
	@$(BIN)/python -m rolloutfleet_operator.chart charts/rolloutfleet
	@$(BIN)/python -m tests.cluster.charts.raw > .raw && mv .raw examples/kubernetes/operator.yaml

.PHONY: sglang
sglang: $(READY) ## install the real SGLang once for all clones (Linux, 10 GB, no GPU needed)
	@$(BIN)/python -m tests.engine.sglang.install

.PHONY: cluster
cluster: $(READY) ## compile Kubernetes and build the node image once for all clones (python -m toolchain.kubernetes creates clusters)
	@$(BIN)/python -m toolchain.kubernetes prepare --if-possible
	@$(BIN)/python -m images --fetch-only

.PHONY: clean
clean: ## remove what make created here (shared caches stay in ~/.cache/rolloutfleet: make clean-sglang clean-cluster)
	@rm -rf .venv .cache .rolloutfleet .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache benchmarks/bin dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: clean-sglang
clean-sglang: $(READY) ## remove the shared SGLang, every version of it
	@$(BIN)/python -m tests.engine.sglang.install --remove

##@ Run it on a cluster
.PHONY: clean-cluster
clean-cluster: $(READY) ## remove every test cluster, and everything cached for them
	@$(BIN)/python -m toolchain.kubernetes down --all --cache

.PHONY: wheel
wheel: $(READY) ## build the wheel into dist/: one file that pip installs anywhere, a trainer's environment too (1 MB)
	@rm -f "$(DIST)"/rolloutfleet-*.whl
	@$(BIN)/uv build --quiet --wheel --no-build-isolation --out-dir "$(DIST)"
	@du -h "$(DIST)"/rolloutfleet-*.whl

.PHONY: images
images: $(READY) ## build the images of proxy, operator, gateway and simulated engine (ARGS=--help for bases and names)
	@$(BIN)/python -m images $(ARGS)

##@ Help
.PHONY: help
help: ## this list
	@echo "RolloutFleet. First time here? Try: make quickstart"
	@awk 'BEGIN { FS = ":.*## " } \
	    /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	    /^[a-z0-9-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@printf "\nMore for the command behind a target: make test ARGS='-k wire --durations=10'\n"

$(READY): pyproject.toml requirements.lock scripts/setup scripts/find-python
	@scripts/setup
	@touch $@
