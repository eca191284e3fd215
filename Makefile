# `make` alone lists the targets. Everything runs in .venv, which the set-up targets build and keep up to date: each target sets up
# what it uses and no more.

PYTHON   ?= python3
PORT     ?= 8000
SETTINGS ?= cluster/local.yaml
MODEL    ?=
FAST     ?=
SCENARIO ?= mixed
DURATION ?=
EVAL     ?= --help
BIN      := .venv/bin
SERVER   := --settings $(SETTINGS) --port $(PORT) $(if $(MODEL),--model $(MODEL))
FREEZE   = pip freeze --all | sed -E 's/\+[a-z0-9.]+$$//' | grep -vE '^(-e|\#|($(UNLOCKED))[= ])'
UNLOCKED := pip|wheel|podium|torchvision|torchaudio|torchcodec|triton

.DEFAULT_GOAL := help
.PHONY: help setup setup-base setup-dev setup-learning serve demo stop test check fix bench load siege load-outside capacity eval check-cluster train-tiny docs lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 16
	@echo
	@echo "  make serve takes MODEL=Qwen/Qwen2.5-1.5B-Instruct (a hub's name or a folder), SETTINGS=file.yaml, PORT=8000, FAST=1 (HAProxy in front)"

setup: ## build .venv with what SETTINGS needs, vLLM and local models only where it serves them; quick when nothing changed
	@$(PYTHON) -m cluster.local.setup --settings $(SETTINGS) $(if $(MODEL),--model $(MODEL))

setup-base:
	@$(PYTHON) -m cluster.local.setup

setup-dev:
	@$(PYTHON) -m cluster.local.setup --dev

setup-learning: ## all packages and both local models, for training, evaluation, the bench and the tests
	@$(PYTHON) -m cluster.local.setup --learning

serve: setup ## serve on http://127.0.0.1:8000 until Ctrl-C
	@exec $(BIN)/podium serve $(SERVER) $(if $(filter-out 0,$(FAST)),--fast)

demo: setup ## start it, ask one question, show plan, answer, cost and trace, stop it
	@exec $(BIN)/podium demo $(SERVER)

stop: setup-base ## end what a crashed or forgotten `make serve` of this checkout left running
	@$(BIN)/podium stop

check: setup-learning ## format, lint, types, arrows between packages (under a minute)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/basedpyright --level error
	@$(BIN)/lint-imports

test: check ## check, then every test, real Ray Serve and real vLLM included
	@$(BIN)/python -m pytest

fix: setup-dev ## let ruff repair what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: setup-learning ## the figures of the README; written to build/bench.json too
	@mkdir -p build
	@$(BIN)/podium bench

load: setup-dev ## load a running server (PORT=8000): SCENARIO=open-mixed DURATION=10m; report in build/load/SCENARIO
	@$(BIN)/podium load $(SCENARIO) --url http://127.0.0.1:$(PORT) $(if $(DURATION),--duration $(DURATION))

siege: setup-dev ## ordinary clients beside 5,000 idle connections, unfinished bodies, huge headers and prompts, on both paths
	@$(BIN)/podium siege

load-outside: setup-dev ## the same load by ours and by AIPerf, and whether they agree
	@$(BIN)/python -m loadtest.outside --url http://127.0.0.1:$(PORT)

capacity: setup-dev ## replicas, GPUs and dollars for a rate, simulated
	@$(BIN)/podium capacity

eval: setup-learning ## compare strategies: EVAL="--settings FILE --questions gsm8k"; without EVAL it tells how
	@$(BIN)/podium eval $(EVAL)

check-cluster: setup-base ## do pool, Serve config and machines agree, and what do they cost
	@$(BIN)/podium check

train-tiny: setup-learning ## a tiny conductor learns by reward, three seeds, minutes; figures in build/train-tiny.json
	@$(BIN)/python -m training.tiny

docs: setup-base ## write docs/settings.md again, from the settings' classes
	@$(BIN)/python -m serving.settings_page > build/settings.md && mv build/settings.md docs/settings.md

# First everything in one environment, so that the versions fit together; then each set by itself, at those versions.
lock: ## make the files in requirements/ again, in environments of their own
	@rm -rf build/lock && mkdir -p build/lock
	@for each in all engine dev; do $(PYTHON) -m venv build/lock/$$each || exit 1; done
	@build/lock/all/bin/pip install --quiet -e '.[cpu,dev]'
	@build/lock/all/bin/$(FREEZE) > build/lock/serving.txt
	@build/lock/all/bin/pip install --quiet -c build/lock/serving.txt -e '.[cpu,training,evaluation,dev]'
	@build/lock/all/bin/$(FREEZE) > build/lock/all.txt
	@build/lock/engine/bin/pip install --quiet -c build/lock/all.txt setuptools -e .
	@build/lock/engine/bin/$(FREEZE) > build/lock/base.txt
	@build/lock/engine/bin/pip install --quiet -c build/lock/all.txt -e '.[cpu]'
	@build/lock/engine/bin/$(FREEZE) | grep -vxFf build/lock/base.txt > build/lock/cpu.txt
	@build/lock/dev/bin/pip install --quiet -c build/lock/all.txt setuptools -e '.[dev]'
	@build/lock/dev/bin/$(FREEZE) | grep -vxFf build/lock/base.txt > build/lock/dev.txt
	@cat build/lock/base.txt build/lock/cpu.txt build/lock/dev.txt | grep -vxFf - build/lock/all.txt > build/lock/learning.txt
	@for each in base cpu dev learning; do cat requirements/$$each.head.txt build/lock/$$each.txt > requirements/$$each.lock; done
	@rm -rf build/lock

clean: ## remove .venv, the local model and build/
	rm -rf .venv build models *.egg-info
