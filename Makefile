# Pagewire's verbs, the same ones that CI calls. Each works in a fresh clone: it makes the environment that it needs.
#   make demo           a real model answers one question through the three services
#   make test           every test, those of cachesvc and gateway again where torch is absent, then make aot
#   make aot            compiles every kernel for an H200 that need not be there; fails on spills and lost wide copies
#   make test-gpu       on a machine with a GPU: the kernel tests compiled, then small ones under compute-sanitizer
#   make check          lint, types, import contracts, proto lint, freshness of what is made from the protos, glossary
#   make proto          protos/pagewire/v1/*_pb2* from the .proto files; proto-check proves them fresh
#   make docs           docs/api.md from the comments of the .proto files; docs-check proves it fresh
#   make soak           random histories of the manager, 200,000 steps of them, into bench/results/soak.json
#   make fuzz           20,000 bad inputs over gRPC and HTTP into bench/results/fuzz.json; SEED=N for the same ones again
#   make chaos          kills, stops and cuts under load, ten minutes of them, into bench/results/chaos.json; SEED=N as in make fuzz
#   make bench          host time of a step and end-to-end speed, into bench/results/
#   make load           64 streams through the public API by k6, on a runner without a model; fails where a bound is missed
#   make bench-gpu-kernels  on a machine with a GPU: every kernel against its floor and torch, into bench/results/h200.json
#   make bench-gpu-serve  likewise: whole workloads through cachesvc and the runner
#   make bench-gpu-split  likewise: what it costs that those two are processes of their own
#   make compose-test   images and compose.yaml on a real Docker engine
#   make up             the three services in Docker; `docker compose down` stops them
#   make clean          removes environments and caches of this directory; fetched models stay
#
# PYTHON=python3.12 picks the interpreter of new environments; pip's own settings and PIP_* variables apply.
# GPU_PYTHON is an interpreter that has constraints-gpu.txt and pytest already: test-gpu makes no environment.

SHELL := /bin/bash
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: demo test test-without-services test-light aot test-gpu soak fuzz chaos check proto proto-check docs docs-check bench load bench-gpu-kernels bench-gpu-serve bench-gpu-split compose-test up clean model

PYTHON ?= python3
GPU_PYTHON ?= python3
MODEL := smollm2-135m-instruct
BIN := .venv/bin
BUILD_PACKAGES := hatchling editables setuptools wheel
EVERYTHING := -e '.[runner,gateway,smg,fetch,load,test,check]'
WITHOUT_TORCH := -e '.[gateway,smg,test]'
CHECKS := "ruff check" "ruff format --check" mypy lint-imports "buf lint" "python .ci/glossary.py"

# $(call new_environment,DIRECTORY,CONSTRAINTS FILE)
define new_environment
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] not in [(3, 11), (3, 12)])' || \
	{ echo "Pagewire needs Python 3.11 or 3.12, and $(PYTHON) is not: make PYTHON=python3.12 ..." >&2; exit 1; }
@echo "Installing packages into $(1): a few minutes when pip must download them."
@$(PYTHON) -m venv --clear $(1)
@.ci/twice $(1)/bin/pip install -q --disable-pip-version-check -c $(2)
endef

# $(call install,DIRECTORY,CONSTRAINTS FILE,REQUIREMENTS)
install = @.ci/twice $(1)/bin/pip install -q --disable-pip-version-check --no-build-isolation -c $(2) $(3)

demo: model
	$(BIN)/pagewire generate --serve $(MODEL) --chat "What is the capital of France?"

model: .venv/.made
	$(BIN)/pagewire fetch $(MODEL)

# All runs, whatever fails. Tests of running services wait for processes most of the time, so the others run beside them, and are
# shown after them.
WITH_SERVICES := tests/e2e tests/chaos tests/fuzz
test: model .venv-light/.made .venv-aot/.made examples/node/node_modules/.made
	@shown=$$(mktemp) && trap 'rm -f "$$shown"' EXIT; \
	$(MAKE) --no-print-directory --keep-going test-without-services test-light aot > "$$shown" 2>&1 & beside=$$!; \
	failed=; $(BIN)/pytest $(WITH_SERVICES) || failed=y; \
	wait $$beside || failed=y; cat "$$shown"; \
	[ -z "$$failed" ] || { echo "make test: failed" >&2; exit 1; }

test-without-services: .venv/.made
	@$(BIN)/pytest $(addprefix --ignore=,$(WITH_SERVICES))

test-light: .venv-light/.made
	@echo "Where torch is absent:"
	@.venv-light/bin/python -c 'import importlib.util, sys; sys.exit(".venv-light has torch" if importlib.util.find_spec("torch") else 0)'
	@.venv-light/bin/pytest -m "not torch" tests/cachesvc tests/gateway tests/servicekit

aot: .venv-aot/.made
	env -u TRITON_INTERPRET TRITON_CACHE_DIR=.venv-aot/triton .venv-aot/bin/python -m tests.kernels.aot

test-gpu:
	.ci/test-gpu $(GPU_PYTHON)

soak: .venv/.made
	nice $(BIN)/python -m tests.cachesvc.soak

fuzz: .venv/.made
	nice $(BIN)/python -m tests.fuzz $(if $(SEED),--seed $(SEED))

chaos: model
	nice $(BIN)/python -m tests.chaos $(if $(SEED),--seed $(SEED))

# All of them, whatever fails: one run shows everything.
check: .venv/.made proto-check docs-check
	@failed=; for tool in $(CHECKS); do \
		echo "$(BIN)/$$tool"; $(BIN)/$$tool || failed="$$failed, $$tool"; \
	done; \
	[ -z "$$failed" ] || { echo "make check: failed: $${failed#, }" >&2; exit 1; }

# $(call protoc,WHAT IT WRITES)
protoc = PATH="$(CURDIR)/.venv-proto/bin:$$PATH" .venv-proto/bin/python -m grpc_tools.protoc -Iprotos $(1) protos/pagewire/v1/*.proto
# $(call generate,DIRECTORY)
generate = $(call protoc,--python_out=$(1) --grpc_python_out=$(1) --mypy_out=quiet:$(1) --mypy_grpc_out=quiet:$(1))
# $(call document,FILE)
document = set -o pipefail; $(call protoc,--descriptor_set_out=/dev/stdout --include_source_info) | .venv-proto/bin/python .ci/api_docs.py > $(1)

proto: .venv-proto/.made
	rm -f protos/pagewire/v1/*_pb2*
	$(call generate,protos)

proto-check: .venv-proto/.made
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && $(call generate,"$$fresh") && \
	diff -r --exclude='*.proto' --exclude=__pycache__ protos "$$fresh" || \
	{ echo "protos/pagewire/v1/*_pb2* do not match the .proto files: run make proto" >&2; exit 1; }

docs: .venv-proto/.made
	@$(call document,docs/api.md)

docs-check: .venv-proto/.made
	@fresh=$$(mktemp) && trap 'rm -f "$$fresh"' EXIT && $(call document,"$$fresh") && diff docs/api.md "$$fresh" || \
	{ echo "docs/api.md does not match the .proto files: run make docs" >&2; exit 1; }

bench: model
	$(BIN)/python -m bench.cachesvc
	$(BIN)/python -m bench.reader
	$(BIN)/python -m bench.e2e

load: model
	@$(BIN)/python -m bench.load

bench-gpu-kernels:
	$(GPU_PYTHON) -m bench.gpu.kernels $(if $(OUT),--json $(OUT)/h200.json)

bench-gpu-serve:
	$(GPU_PYTHON) -m bench.gpu.serve $(if $(OUT),--json $(OUT)/h200.json)

bench-gpu-split:
	$(GPU_PYTHON) -m bench.gpu.split $(if $(OUT),--json $(OUT)/h200.json)

compose-test: .venv-light/.made
	PATH="$(CURDIR)/.venv-light/bin:$$PATH" tests/compose/compose_test.sh

up:
	docker compose up --build --wait
	@docker compose port gateway 50051
	@docker compose port gateway 8000

clean:
	rm -rf .venv .venv-light .venv-proto .venv-aot examples/node/node_modules dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.made: pyproject.toml constraints.txt
	$(call new_environment,.venv,constraints.txt) $(BUILD_PACKAGES)
	$(call install,.venv,constraints.txt,$(EVERYTHING))
	@touch $@

.venv-light/.made: pyproject.toml constraints.txt
	$(call new_environment,.venv-light,constraints.txt) $(BUILD_PACKAGES)
	$(call install,.venv-light,constraints.txt,$(WITHOUT_TORCH))
	@touch $@

.venv-proto/.made: constraints-proto.txt
	$(call new_environment,.venv-proto,constraints-proto.txt) grpcio-tools mypy-protobuf
	@touch $@

examples/node/node_modules/.made: examples/node/package-lock.json
	@command -v npm > /dev/null || { echo "There is no npm here: the Node example is not tried." >&2; exit 0; }; \
	.ci/twice npm ci --prefix examples/node --ignore-scripts --no-audit --no-fund && touch $@

# The triton of the card, and torch, of any version, from .venv: two torches would be 700 MB more.
.venv-aot/.made: constraints-gpu.txt .venv/.made
	$(call new_environment,.venv-aot,constraints-gpu.txt) triton
	@site='import sysconfig; print(sysconfig.get_path("purelib"))'; \
	$(BIN)/python -c "$$site" > "$$(.venv-aot/bin/python -c "$$site")/torch_of_venv.pth"
	@touch $@
