# `make` without a target lists the targets. Everything runs in .venv. Each target first installs what it needs.

PYTHON   ?= python3
PORT     ?= 8000
SETTINGS ?= cluster/local.yaml
MODEL    ?=
CONDUCTOR ?=
PROXY    ?=
FAST     ?=
SCENARIO ?= mixed
DURATION ?=
EVAL     ?= --help
PROVE    ?=
SIEGE    ?=
FUZZ     ?=
CLIENTS  ?=
EXAMPLES ?= 20000
TESTS    := -n logical --maxprocesses 4
# One process more than there are cores, because some tests wait for another process.
FAST_TESTS := -n $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n < 4 ? n + 1 : 4))) --dist worksteal
DATA     ?=
EXTRA    ?=
BASE     ?=
TAG      ?=
IMAGE    ?=
# With glibc's malloc, small allocations take a third of a training step on a CPU. Debian's tcmalloc is used if it is installed.
MALLOC   := $(firstword $(wildcard /usr/lib/*/libtcmalloc_minimal.so.4))
LEARNED  := $(if $(DATA),requests_and_recorded second_lesson third_lesson fourth_lesson fifth_lesson sixth_lesson eighth_lesson,requests)
BIN      := .venv/bin
# Quote a value for the shell, and expand a leading ~.
quote     = '$(subst ','\'',$(patsubst ~/%,$(HOME)/%,$(1)))'
CHOSEN   := --settings $(call quote,$(SETTINGS)) $(if $(MODEL),--model $(call quote,$(MODEL))) $(if $(CONDUCTOR),--conductor $(call quote,$(CONDUCTOR)))
# FAST is the older name: 1 is HAProxy, 0 is Serve's own proxy.
FRONT    := $(or $(PROXY),$(if $(FAST),$(if $(filter 0,$(FAST)),serve,haproxy)))
SERVER   := $(CHOSEN) --port $(PORT) $(if $(FRONT),--proxy $(call quote,$(FRONT)))

.DEFAULT_GOAL := help
.PHONY: help setup setup-base setup-dev setup-learning setup-browser setup-site console wheel image serve demo stop test test-live test-slow test-all browser-test check lint fix bench prove prove-ledger prove-records prove-outages prove-chaos prove-overload prove-hedging prove-tools prove-lists prove-schemas prove-seams soak fuzz fuzz-api fuzz-streams clients load siege fuzz-policy capacity eval check-cluster train-tiny train-conductor docs site doctor faults lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 16
	@echo
	@echo "  make serve takes CONDUCTOR=gpt-5 (the worker that writes the plans; needs its key), and"
	@echo "  MODEL=Qwen/Qwen2.5-1.5B-Instruct (a hub's name or a folder), SETTINGS=file.yaml, PORT=8000, PROXY=serve (Ray Serve's own proxy in front, not HAProxy)"

setup: ## build .venv for SETTINGS; vLLM and local models are installed only if it needs them
	@$(PYTHON) -m cluster.local.setup $(CHOSEN)

setup-base:
	@$(PYTHON) -m cluster.local.setup

setup-dev:
	@$(PYTHON) -m cluster.local.setup --dev

setup-learning: ## install all packages and both local models, for training, evaluation, the bench and the tests
	@$(PYTHON) -m cluster.local.setup --learning

setup-browser:
	@$(PYTHON) -m cluster.local.setup --console --dev --browser

setup-site:
	@$(PYTHON) -m cluster.local.setup --site

console: ## build the web console that the server shows at /console; `make serve` does that too
	@$(PYTHON) -m cluster.local.setup --console

wheel: console ## build dist/podium-VERSION-py3-none-any.whl, with the console, for `pip install` and for the image
	@$(BIN)/python -m cluster.local.wheel

image: wheel ## build the image of cluster/Dockerfile with Buildah or Docker: EXTRA=cpu, BASE=NAME@sha256:..., TAG=NAME, IMAGE="further options"
	@$(BIN)/python -m cluster.local.image --extra=$(call quote,$(EXTRA)) --base=$(call quote,$(BASE)) --tag=$(call quote,$(TAG)) -- $(IMAGE)

serve: setup ## serve on http://127.0.0.1:8000 until Ctrl-C
	@exec $(BIN)/podium serve $(SERVER)

demo: setup ## start a server, ask one question, show plan, answer, cost and trace, and stop it
	@exec $(BIN)/podium demo $(SERVER)

stop: setup-base ## stop what a crashed or forgotten `make serve` of this checkout left running
	@$(BIN)/podium stop

check: lint ## check format, lint, types, imports, plain English and size (two minutes)
	@$(BIN)/basedpyright --level error

lint: setup-learning
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports
	@$(BIN)/python -m tests.imports
	@$(BIN)/python -m tests.plain_english
	@$(BIN)/python -m tests.growth

# Without bytecode files, pytest rewrites every assertion again: 12 s of CPU in each process.
test test-live test-slow: export PYTHONDONTWRITEBYTECODE =

test: lint ## run the checks, all in-process tests, and one real start of the default settings (minutes)
	@$(BIN)/python -m pytest $(FAST_TESTS) -m "not live and not slow"

test-live: setup-learning ## run the other tests that start servers: HAProxy, keys, two nodes, reload, draining
	@$(BIN)/python -m pytest $(TESTS) --dist loadscope -m "live and not slow"

test-slow: setup-learning ## run trainings, set-up in new environments, autoscaling, soak and chaos, and 1,000 examples of each property
	@$(BIN)/python -m pytest $(TESTS) --dist worksteal -m "slow or (hypothesis and not live)" --hypothesis-profile slow --timeout 900

test-all: test test-live test-slow ## run the three tiers of tests

browser-test: setup-browser ## test the web console in Chromium (apt install chromium), and its own code
	@$(BIN)/python -m cluster.local.console --test
	@$(BIN)/python -m pytest tests/console/browser.py tests/console/browser_faults.py

fix: setup-dev ## fix what ruff can fix
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: setup-learning ## measure the figures of the README, and write them to build/bench.json
	@mkdir -p build
	@$(BIN)/podium bench

prove-ledger prove-records prove-tools prove-outages prove-chaos prove-overload prove-hedging prove-lists: setup-base
	@$(BIN)/podium prove $(@:prove-%=%) $(PROVE)

prove-schemas prove-seams: setup-dev
	@$(BIN)/podium prove $(@:prove-%=%) $(SCHEMAS) $(SEAMS)

prove: setup-dev ## inject faults and check that nothing is lost: NAME=ledger PROVE="--runs 1"; without NAME, list the proofs
	@$(BIN)/podium prove $(NAME) $(PROVE)

soak fuzz-api: setup-base
	@$(BIN)/podium prove $@ $(PROVE) $(FUZZ)

fuzz-streams fuzz-policy: setup-dev
	@$(BIN)/podium prove $@ $(FUZZ) $(EXAMPLES)

fuzz: fuzz-streams fuzz-api ## test with damaged provider responses, and with requests generated from the OpenAPI description (ten minutes each)

clients: setup-learning ## run unmodified third-party clients against scripted workers: CLIENTS="codex opencode" (docs/clients.md)
	@$(BIN)/python -m tests.clients $(CLIENTS)

load: setup-dev ## load a running server (PORT=8000): SCENARIO=open-mixed DURATION=10m; report in build/load/SCENARIO
	@$(BIN)/podium load $(SCENARIO) --url http://127.0.0.1:$(PORT) $(if $(DURATION),--duration $(DURATION))

siege: setup-dev ## attack a server while ordinary clients use it, on both proxies and a router's own port (an hour): SIEGE="--paths replica"
	@$(BIN)/podium siege $(SIEGE)

capacity: setup-dev ## simulate the replicas, GPUs and dollars that a request rate needs
	@$(BIN)/podium capacity

eval: setup-learning ## compare strategies: EVAL="--settings FILE --questions gsm8k"; without EVAL, show the options
	@$(BIN)/podium eval $(EVAL)

check-cluster: setup-base ## compare settings, Serve config and machines, and estimate the cost
	@$(BIN)/podium check

train-tiny: setup-learning ## train a tiny conductor with three seeds in minutes, and write the figures to build/train-tiny.json
	@$(BIN)/python -m training.tiny

train-conductor: setup-learning ## train a conductor on requests (75 minutes on two cores), or with DATA=FILE the shipped one (nine hours); a second call resumes
	@$(if $(DATA),mkdir -p build && { test $(call quote,$(DATA)) -ef build/recorded.jsonl.gz || cp -- $(call quote,$(DATA)) build/recorded.jsonl.gz; })
	@for name in $(LEARNED); do $(if $(MALLOC),LD_PRELOAD=$(MALLOC)) $(BIN)/podium train --config training/configs/$$name.yaml $$(test ! -d build/training/$$name || echo --resume) || exit $$?; done

docs: setup-dev ## write the generated parts of docs/
	@$(BIN)/podium docs

site: setup-site ## build the documentation as a static site in build/site, and check every link
	@$(BIN)/podium docs --site build/site

doctor: setup-base ## find problems with this machine or SETTINGS, and suggest fixes
	@$(BIN)/podium doctor --settings $(call quote,$(SETTINGS)) --port $(PORT)

faults: setup-dev ## simulate every provider fault, and write what clients see to docs/faults.md
	@mkdir -p build
	@$(BIN)/python -m tests.serving.api.play_faults --out build/faults.md
	@$(BIN)/python -m tests.serving.api.play_defaults --append build/faults.md
	@mv build/faults.md docs/faults.md

lock: setup-base ## update the locks in requirements/ from pyproject.toml, with hashes; versions change only if pyproject.toml requires it
	@$(BIN)/python -m cluster.local.uv

clean: ## remove .venv, the local models, build/ and dist/
	rm -rf .venv build dist models *.egg-info
