# `make` prints what there is. What a target does is in tools/; the stages of `make test` are in tools/stages.toml.

.DEFAULT_GOAL := help
.SUFFIXES:
export LC_ALL := C.UTF-8

PARTS := lint unit sim-test redfish-test build sanity hosts-test gateway-test engine-test molecule demo-test

##@ Try it

.PHONY: demo
demo: ## The whole service on a test host of this machine: simulated A100s, a real engine, a real answer
	@tools/setup demo
	@.venv/bin/python sandbox/demo.py up

.PHONY: demo-down
demo-down: ## Remove the demo's host; the caches stay
	@tools/setup demo
	@.venv/bin/python sandbox/demo.py down

##@ Test it

.PHONY: test
test: setup nvml-sim ## Every test; some of them: make test STAGES="lint unit"
	@.venv/bin/python tools/run_stages.py $(STAGES)

.PHONY: stages
stages: setup ## What `make test` runs
	@.venv/bin/python tools/run_stages.py --list

.PHONY: $(PARTS)
$(PARTS): setup nvml-sim
	@.venv/bin/python tools/run_stages.py $@

# Before any stage, because stages that run side by side use it.
.PHONY: nvml-sim
nvml-sim: setup
	@$(MAKE) --no-print-directory --silent -C tests/nvml_sim

##@ Work on it

.PHONY: setup
setup: ## Install into .venv and from apt what demo and test need; PYTHON=/path/to/python3.13 picks the interpreter
	@tools/setup test

.PHONY: format
format: setup ## Format the Python files
	@.venv/bin/ruff check --fix --select I .
	@.venv/bin/ruff format .

.PHONY: lock
lock: setup ## Make requirements*.txt anew from requirements*.in; LOCK="--upgrade" for the newest versions
	@PATH="$(CURDIR)/.venv/bin:$$PATH" tools/lock $(LOCK)

.PHONY: clean
clean: ## Remove what was made in this folder; the caches outside stay (docs/development.md)
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .ansible build dist tests/output
	$(MAKE) --no-print-directory -C tests/nvml_sim clean

.PHONY: help
help: ## This
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@printf '\nParts of make test, each a target too: %s\n' "$(PARTS)"
