# Every target is a few plain commands: read it, and run them yourself if you like.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

GO       ?= go
PYTHON   ?= python3
# Packages tested at once: most of a test is waiting. Some test binaries link a NATS server: about 1 GB each while linking.
P        ?= 4
TIMEOUT  ?= 30m
FUZZTIME ?= 60s

# With -trimpath every clone of this machine shares one build cache.
export GOFLAGS := -buildvcs=false -trimpath $(filter-out -buildvcs% -trimpath,$(GOFLAGS))

# Some containers set it. Tests start hundreds of Pythons, each of which would compile its modules again: a second and more.
unexport PYTHONDONTWRITEBYTECODE

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT  := $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
LDFLAGS := -X main.version=$(VERSION) -X main.commit=$(COMMIT)

BINARIES := $(notdir $(wildcard cmd/mesh cmd/mesh-agent cmd/mesh-router))
VENV     := .venv
MCP      := .tools/mcp
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
DEADCODE := golang.org/x/tools/cmd/deadcode@v0.52.0
GOTESTSUM := gotest.tools/gotestsum@v1.13.0
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0

.PHONY: help build test-others test-mcp conformance wheels wheel demo test test-more environments test-go test-python test-frameworks test-newest test-k8s e2e-k8s k8s openapi skipped verify vulnerable deadcode race bench scale fuzz soak kernel images images-context images-check test-images clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Tests run the binaries while another target asks for them again: one that is up to date is left alone, a new one is
# renamed into its place. go build -o writes to the file that is there.
build: ## the binaries, into bin/
	@mkdir -p bin
	@for b in $(BINARIES); do echo "build bin/$$b"; $(GO) build -ldflags '$(LDFLAGS)' -o bin/$$b.new ./cmd/$$b; \
	 if cmp -s bin/$$b.new bin/$$b; then rm bin/$$b.new; else rm -rf bin/worker; mv bin/$$b.new bin/$$b; fi; done

demo: build ## a whole mesh on this machine: install, call, stream, clean up
	@bin/mesh demo

test: ## the product; needs only go, python3, git and make
	@$(MAKE) -j2 test-go test-others
	@$(MAKE) skipped

# One after the other, while Go's tests run: those wait more than they compute.
test-others: build $(UV)
	@$(MAKE) environments
	@$(MAKE) test-python test-frameworks test-mcp

test-more: test-k8s test-images openapi test-newest wheel ## manifests of Kubernetes, images, the gateway's OpenAPI document, the newest frameworks, a wheel; minutes

environments: $(VENV)/test.stamp $(VENV)/pydantic1.stamp $(VENV)/frameworks.stamp $(VENV)/suites.stamp $(MCP)/stamp

# Of a package that passed its closing line, of others what failed; at the end what was skipped, and why. Machines are
# noisy: up to 5 tests that fail are run once more by themselves, and those that fail again fail for good. Either way
# the first failure is in the summary. A package that fails although its tests pass (goroutines that are left, a child that holds
# the output) is run again without any test, and passes: LEFT fails for it. All output is in bin/TARGET.json.
LEFT = ! grep -E '"Output":"(goleak: |testing: race detected outside|\*\*\* Test I/O incomplete)' bin/$@.json
GOTEST = $(GO) run $(GOTESTSUM) --jsonfile=bin/$@.json --format pkgname-and-test-fails --format-hide-empty-pkg --rerun-fails=1 --rerun-fails-max-failures=5 --packages=./... --

# uv, as a machine of agents has it: an agent that finds none installs its own, which takes longer than most tests.
# Environments are installed with it, too: it takes a tenth of pip's processor time. Where uv finds no package index, pip may.
UV = .tools/uv/bin/uv
$(UV): executor/internal/venv/uv.go
	@rm -rf .tools/uv
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --no-compile --target .tools/uv "uv==$$(sed -n 's/^const uvVersion = "\(.*\)"/\1/p' $<)"

install = $(UV) pip install --quiet --python $(1) $(2) || $(1) -m pip install --quiet --disable-pip-version-check $(2)

ALL = PATH="$(CURDIR)/.tools/uv/bin:$$PATH" MESH_TEST_BIN="$(CURDIR)/bin" .ci/tests $(GOTEST) -vet=off -p $(P) -timeout $(TIMEOUT)

test-go: build $(UV)
	@$(GO) vet ./...
	@$(ALL)
	@$(LEFT)

# As for Go: what fails is run once more by itself, and what fails again fails for good.
AGAIN = --last-failed --last-failed-no-failures none

test-python: $(VENV)/test.stamp $(VENV)/pydantic1.stamp
	@cd python && { ../$(VENV)/bin/python -m pytest -q || ../$(VENV)/bin/python -m pytest -q $(AGAIN); }
	@cd python && PYTHONPATH=../$(VENV)/pydantic1 ../$(VENV)/bin/python -m pytest -q tests/test_models.py tests/test_notes.py

# FRAMEWORKS is the environment: test-newest has another one.
FRAMEWORKS ?= $(VENV)/frameworks

test-frameworks: build $(VENV)/frameworks.stamp $(VENV)/suites.stamp ## DSPy, LangChain and others, the real packages, on a mesh; LangChain's own tests and those of stores
	@suite="$(FRAMEWORKS)/bin/python -m pytest -q -rs -o cache_dir=$(CURDIR)/$(VENV)/pytest -o asyncio_mode=auto -o asyncio_default_fixture_loop_scope=function --timeout 120"; \
	 export MESH_E2E_BIN=$(CURDIR)/bin/mesh MESH_TEST_BIN=$(CURDIR)/bin; $$suite e2e/python/frameworks || $$suite $(AGAIN) e2e/python/frameworks
	@cd python && LITELLM_LOCAL_MODEL_COST_MAP=True $(abspath $(FRAMEWORKS))/bin/python -m pytest -q -p no:asyncio --timeout 120 tests/test_api.py

# What others have made for MCP, apart from everything else. CI must have it; elsewhere what needs it is skipped.
$(MCP)/stamp: e2e/mcp/package.json e2e/mcp/requirements.txt | $(UV)
	@rm -rf $(MCP) && mkdir -p $(MCP) && cp $< $(MCP)
	@if said=$$( (cd $(MCP) && npm install --no-audit --no-fund --loglevel=error && $(PYTHON) -m venv venv) 2>&1 \
	   && { $(call install,$(MCP)/venv/bin/python,-r e2e/mcp/requirements.txt); } 2>&1); then touch $@; \
	 elif [ "$${CI:-}" = true ]; then echo "$$said"; exit 1; \
	 else echo "$$said" | tail -1 > $(MCP)/unreachable; touch $@; fi

test-mcp: build $(MCP)/stamp ## the conformance suite of MCP, and clients of others; under a minute once they are installed
	@export MESH_MCP_TOOLS=$(CURDIR)/$(MCP); $(GO) test -vet=off -count 1 ./e2e/mcp || $(GO) test -vet=off -count 1 ./e2e/mcp

conformance: build $(MCP)/stamp ## MCP's conformance suite on the gateway: a table for each revision
	@MESH_MCP_TOOLS=$(CURDIR)/$(MCP) $(GO) test -vet=off -count 1 -v -run TestConformance ./e2e/mcp

# Resolved in seconds: where the pinned versions are the newest, test-frameworks was run with them.
test-newest: build $(UV) ## test-frameworks with the newest versions that the registry has, where the pinned ones are older
	@rm -rf $(VENV)/newest && $(PYTHON) -m venv --without-pip $(VENV)/newest
	@sed 's/==/>=/' python/requirements-frameworks.txt > $(VENV)/newest/least.txt; \
	 if ! said=$$($(UV) pip compile --quiet --no-header --no-annotate --python $(VENV)/newest/bin/python \
	     --output-file $(VENV)/newest/requirements.txt $(VENV)/newest/least.txt 2>&1); then \
	   echo "test-newest skipped, the newest versions of the frameworks cannot be asked for: $$said"; exit 0; fi; \
	 older=$$(grep == python/requirements-frameworks.txt | grep -vxFf $(VENV)/newest/requirements.txt || true); \
	 if [ -z "$$older" ]; then echo "test-newest has nothing to do: the pinned versions of the frameworks are the newest"; exit 0; fi; \
	 echo "there are newer versions than" $$older; \
	 $(UV) pip install --quiet --python $(VENV)/newest/bin/python -r $(VENV)/newest/requirements.txt && \
	 $(MAKE) test-frameworks FRAMEWORKS=$(VENV)/newest

# Its modules are none of the product's: where they cannot be had, there is nothing to test with. CI must have them. Go's cache
# of results does not see the files that it reads outside of its module: -count 1. The module of e2e-k8s is not built here:
# that it is up to date with the product's is all that is seen of it.
test-k8s: ## the manifests of k8s/: rendered, valid, and by our rules; no cluster
	@cd k8s/check && if said=$$($(GO) mod download 2>&1); then $(GO) vet ./... && $(GO) test -vet=off -count 1 ./... && cd ../../e2e/k8s && $(GO) list -m all >/dev/null; \
	 elif [ "$${CI:-}" = true ]; then echo "$$said"; exit 1; \
	 else echo "test-k8s skipped, its modules cannot be downloaded: $$said"; fi

# Programs of others, from npm and PyPI: where they cannot be had, there is nothing to test with. CI must have them.
openapi: ## the gateway's OpenAPI document: redocly's linter, schemathesis, a generated client; a minute
	@if said=$$($(MAKE) $(VENV)/openapi.stamp 2>&1); then MESH_OPENAPI=$(CURDIR)/$(VENV)/openapi $(GO) test -count 1 -run TestOpenAPIOfOthers ./e2e; \
	 elif [ "$${CI:-}" = true ]; then echo "$$said"; exit 1; \
	 else echo "openapi skipped, its programs cannot be downloaded: $$said"; fi

$(VENV)/openapi.stamp: python/requirements-openapi.txt | $(UV)
	@$(PYTHON) -m venv $(VENV)/openapi
	@$(call install,$(VENV)/openapi/bin/python,-r $<)
	@npm install --silent --no-audit --no-fund --prefix $(VENV)/openapi @redocly/cli@2.77.0
	@touch $@

# -v, as Go says nothing of a package that passes, and what was skipped or measured is to be seen. RUN is a pattern of test names.
e2e-k8s: ## the manifests and images on a Kubernetes cluster that is made for it; root, 10 minutes, the first time 20 more
	@cd e2e/k8s && $(GO) vet ./... && $(GO) test -vet=off -count 1 -v -timeout 60m $(if $(RUN),-run '$(RUN)') .

k8s: ## render k8s/rendered anew from the overlays
	@cd k8s/check && K8S_RENDER=1 $(GO) test -count 1 -run TestRendered .

skipped:
	@echo
	@echo "not run by make test: the manifests of Kubernetes, the images, the gateway's OpenAPI document by programs of others and the Python frameworks at newer versions than the pinned ones (make test-more, which CI runs), race detector, staticcheck, dead code, ruff and mypy (make verify), benchmarks (make bench), fuzzing beyond the seeds (make fuzz), 100,000 calls in lanes, files of 256 MB, machines whose clocks differ, clusters of two and JWTs everywhere, each client of the conformance cases with each kind of host, what indexes try at an installation but at an agent of root with level guard, what other spellings of it and a second node come to, levels stricter than the one that stops what a tool tries, a thousand processes of an import, processes without end beside the watchdog alone, copies of other Pythons than 3.11, most benchmarks (make soak), the manifests and images on a Kubernetes cluster (make e2e-k8s), control groups of version 2 on a kernel of their own (make kernel), the agent's container image (make images-check)"

verify: $(VENV)/verify.stamp ## vet, staticcheck, gofmt, dead code, race tests, ruff, mypy
	@unformatted=$$(git ls-files -co --exclude-standard '*.go' | xargs gofmt -l); \
	 if [ -n "$$unformatted" ]; then echo "not formatted, run gofmt -w on:"; echo "$$unformatted"; exit 1; fi
	@$(GO) vet ./...
	@$(GO) run $(STATICCHECK) ./...
	@$(MAKE) deadcode
	@$(MAKE) vulnerable
	@cd python && ../$(VENV)/bin/ruff check . ../e2e/python ../e2e/conformance ../bench/python && ../$(VENV)/bin/mypy
	@$(MAKE) race

vulnerable: ## known vulnerabilities of dependencies, if their list can be reached
	@said=$$($(GO) run $(GOVULNCHECK) ./... 2>&1) || case "$$said" in \
	   *"fetching vulnerabilities:"*) echo "govulncheck skipped: $$(echo "$$said" | grep fetching)";; \
	   *) echo "$$said"; exit 1;; esac

deadcode: ## code that no binary, no example and no documented API calls; tests do not count
	@dead=$$($(GO) run $(DEADCODE) $(addprefix ./cmd/,$(BINARIES)) ./examples/... ./internal/archtest/embedders); \
	 if [ -n "$$dead" ]; then echo "no production code calls (remove it, or say in internal/archtest/embedders why it stays):"; echo "$$dead"; exit 1; fi

# The detector makes tests compute more than they wait.
race: P = 2
race: build $(UV) ## every Go test under the race detector; slow
	@$(ALL) -race
	@$(LEFT)

wheels: ## the Python package into dist/: pure, and with the binary of each platform
	@$(PYTHON) python/wheels.py dist

wheel: ## the wheels as make wheels, for this platform alone
	@$(PYTHON) python/wheels.py $(VENV)/wheel $$($(GO) env GOOS)/$$($(GO) env GOARCH)

# Of k8s/images, a module of its own. IMAGE_PREFIX is what the images' names begin with, ARCH amd64 or arm64.
IMAGE_PREFIX ?= localhost/toolmesh
SUITE ?= bookworm
IMAGES  = cd k8s/images && $(GO) run . -out '$(CURDIR)/dist/images' -prefix '$(IMAGE_PREFIX)' -suite '$(SUITE)' $(if $(ARCH),-arch $(ARCH)) \
	-version '$(VERSION)' -commit '$(COMMIT)' -epoch "$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)}"

images: ## container images of router and agent into dist/images, without a container engine
	@$(IMAGES) router agent

images-context: ## the files that the Containerfiles of k8s/images copy, into dist/images/context
	@$(IMAGES) context

test-images: ## the router's image, and that the Containerfiles agree with this program; under a minute
	@cd k8s/images && $(GO) vet ./... && $(GO) test -short -timeout 10m ./...

images-check: ## both images twice, from different folders: the same digests; then starts the agent's
	@cd k8s/images && $(GO) test -count 1 -timeout 60m -v -run TestBothImagesAreReproducible ./...

bench: build ## ratios against raw NATS, measured in one run; BEFORE=FILE, the program ./bench of another state, is compared with
	@$(GO) run ./bench $(if $(BEFORE),-before $(BEFORE))

# More: SCALE="-nodes 200 -tools 20000 -sessions 2000 -settle 40s -steady 20s"; see docs/scale.md.
SCALE ?=

scale: ## a mesh of 1,000 simulated nodes, measured on this machine; takes minutes and 8 GB
	@$(GO) run ./bench scale $(SCALE)

fuzz: ## each fuzz target of the repository for FUZZTIME (60s)
	@for dir in $$(git grep -l --untracked -E '^func Fuzz' -- '*_test.go' | xargs -n1 dirname | sort -u); do \
	   for target in $$($(GO) test -list '^Fuzz' ./$$dir | grep '^Fuzz'); do \
	     echo "== $$dir $$target"; \
	     $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 2s ./$$dir; \
	   done; \
	 done

soak: ## what takes long: 100,000 calls in lanes beside kills, freezes and cuts, and that the checker finds overlaps without the fence; large files; clocks that differ; every arrangement of brokers; each client with each kind of host; an index of 20,000 functions; processes without end where there are control groups, and without; copies of each Python; each benchmark once; what tools try, and indexes at their installation, at every level and by every kind of agent
	@MESH_LANES_CALLS=100000 $(GO) test -count 1 -timeout 60m -v -run TestNothingOverlaps ./e2e/lanes
	@MESH_SOAK=1 $(GO) test -count 1 -timeout 10m -v -run TestMemoryOfAFile ./e2e
	@MESH_SOAK=1 $(GO) test -count 1 -timeout 20m -v -run 'TestClocks|TestSessionKeysWithOtherLibraries' ./e2e
	@MESH_SOAK=1 $(GO) test -count 1 -timeout 10m ./e2e/conformance
	@MESH_SOAK=1 $(GO) test -count 1 -timeout 30m $$(git grep -l -E 'meshtest\.(Topologies|Conversations)\(' -- '*_test.go' | xargs -n1 dirname | sort -u | sed 's,^,./,')
	@MESH_SOAK=1 $(GO) test -count 1 -timeout 10m -run TestIndexOfThousandsOfFunctions ./agent
	@MESH_SOAK=1 $(GO) test -count 1 -timeout 10m -run 'TestForkBombsWithoutDeclaredLimitsEnd|TestForkBombAtImportEnds|TestCopyEqualsAnInterpreterOfItsOwn' ./executor
	@MESH_SOAK=1 $(GO) test -count 1 -timeout 60m -run 'TestInstalls|TestTools' ./e2e/attacks
	@MESH_SOAK=1 $(GO) test -count 1 -timeout 10m ./bench
	@MESH_LANES_TAGS=lanes_without_fence $(GO) test -count 1 -timeout 10m -v -run TestNothingOverlaps ./e2e/lanes

kernel: ## memory limits on a kernel with control groups of version 2, in QEMU; 10 minutes
	@e2e/kernel/run

clean: ## remove built files, but not the caches of go and pip
	@rm -rf bin $(VENV) $(MCP) python/.pytest_cache python/.mypy_cache python/.ruff_cache

# A virtual environment of our own: nothing is installed beside it.
$(VENV)/bin/python:
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	 echo "$(PYTHON) cannot make a virtual environment: on Debian and Ubuntu install python3-venv"; exit 1; }

$(VENV)/test.stamp: python/requirements-test.txt | $(VENV)/bin/python $(UV)
	@$(call install,$(VENV)/bin/python,-r $<)
	@touch $@

# The first version of pydantic, beside the second: indexes still use it.
$(VENV)/pydantic1.stamp: $(VENV)/test.stamp
	@$(call install,$(VENV)/bin/python,--upgrade --target $(VENV)/pydantic1 'pydantic==1.10.27')
	@touch $@

# The frameworks, apart from everything else: they are large, and hold each other to versions.
$(VENV)/frameworks.stamp: python/requirements-frameworks.txt | $(VENV)/bin/python $(UV)
	@$(PYTHON) -m venv $(VENV)/frameworks
	@$(call install,$(VENV)/frameworks/bin/python,-r $<)
	@touch $@

# Suites of other projects, of which nothing is kept here. CI must have them; elsewhere what needs them is skipped.
$(VENV)/suites.stamp: python/requirements-suites.txt $(VENV)/frameworks.stamp
	@if said=$$($(VENV)/frameworks/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary stores \
	   --require-hashes --dest $(VENV)/suites -r $< 2>&1); then touch $@; \
	 elif [ "$${CI:-}" = true ]; then echo "$$said"; exit 1; \
	 else echo "the suite of stores cannot be downloaded, and is skipped: $$said"; fi

$(VENV)/verify.stamp: python/requirements-verify.txt $(VENV)/test.stamp
	@$(call install,$(VENV)/bin/python,-r $<)
	@touch $@
