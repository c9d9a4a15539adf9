# Hawser's tasks. Needs Go, git, gcc and make; all other tools are built from
# the module in .ci/tools into bin/tools, at the versions pinned there.

SHELL     := /bin/bash
TOOLS     := $(CURDIR)/bin/tools
VERSION   := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT    := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
VERSIONPKG := github.com/hawser-kv/hawser/cmd/version
LDFLAGS   := -X $(VERSIONPKG).Version=$(VERSION) -X $(VERSIONPKG).Commit=$(COMMIT)

# What a caller may set: make fuzz FUZZTIME=10m, make test TESTFLAGS=-v ...
TESTFLAGS    ?=
TEST_TIMEOUT ?= 10m
LONG_TIMEOUT ?= 4h
FUZZTIME     ?= 20s
COMPAT_OPS   ?= 100000
SIM_SEEDS    ?= 5000
CRASH_KILLS  ?= 500
BENCHCOUNT   ?= 6

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/hawser
	go build -ldflags '$(LDFLAGS)' -o bin/hawser ./cmd/hawser

.PHONY: run
run: build ## build and start a one-node server on 127.0.0.1:2379, data in ./data
	./bin/hawser --data-dir data

.PHONY: etcdctl
etcdctl: ## build bin/etcdctl, the client of etcd 3.7.3
	cd tests/etcd && go build -o $(CURDIR)/bin/etcdctl go.etcd.io/etcd/etcdctl/v3

# -count=1: some tests run the built server, which the test cache does not see.
.PHONY: test
test: ## all tests that a change must pass (about ten minutes at most)
	go test -count=1 -timeout $(TEST_TIMEOUT) $(TESTFLAGS) ./...

# The packages that need no server of their own, from go test's cache where nothing
# has changed.
.PHONY: unit
unit: ## the tests beside the code, cached (about a minute when all is new)
	go test -timeout $(TEST_TIMEOUT) $(TESTFLAGS) ./mvcc/... ./range/... ./placement/... ./proxy/... ./cmd/config/... ./proto/...

.PHONY: race
race: ## the same tests under the race detector
	go test -race -count=1 -timeout $(LONG_TIMEOUT) $(TESTFLAGS) ./...

.PHONY: compat
compat: build ## COMPAT_OPS requests for each layout of ranges, beside a real etcd
	HAWSER_BINARY=$(CURDIR)/bin/hawser HAWSER_COMPAT_OPS=$(COMPAT_OPS) \
		go test -count=1 -v -timeout $(LONG_TIMEOUT) $(TESTFLAGS) ./tests/compat/...

.PHONY: sim
sim: ## SIM_SEEDS seeds of the simulated node, with faults
	HAWSER_SIM_SEEDS=$(SIM_SEEDS) go test -count=1 -v -timeout $(LONG_TIMEOUT) $(TESTFLAGS) ./tests/simulation/...

.PHONY: crash
crash: build ## bin/hawser killed CRASH_KILLS times under load, on a real disk
	HAWSER_BINARY=$(CURDIR)/bin/hawser HAWSER_CRASH_KILLS=$(CRASH_KILLS) \
		go test -count=1 -v -timeout $(LONG_TIMEOUT) $(TESTFLAGS) ./tests/crash/...

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME each
	.ci/fuzz $(FUZZTIME)

.PHONY: bench
bench: build $(TOOLS)/.bench ## micro-benchmarks, then the same load on etcd and on bin/hawser
	.ci/bench $(BENCHCOUNT)

.PHONY: lint
lint: $(TOOLS)/.lint ## go vet and staticcheck
	go vet ./...
	$(TOOLS)/staticcheck ./...
	cd .ci/tools && go vet ./protogen && $(TOOLS)/staticcheck ./protogen

.PHONY: fmt
fmt: $(TOOLS)/.lint ## format the Go files (gofmt, goimports; our imports last)
	.ci/gofiles | xargs -0 $(TOOLS)/goimports -local github.com/hawser-kv/hawser -w
	.ci/gofiles | xargs -0 gofmt -s -w

.PHONY: fmt-check
fmt-check: $(TOOLS)/.lint
	@bad=$$({ .ci/gofiles | xargs -0 $(TOOLS)/goimports -local github.com/hawser-kv/hawser -l; \
	          .ci/gofiles | xargs -0 gofmt -s -l; } | sort -u); \
	if [ -n "$$bad" ]; then echo "not formatted, run 'make fmt':"; echo "$$bad"; exit 1; fi

.PHONY: generate
generate: $(TOOLS)/.generate ## generate the Go code of proto/
	$(TOOLS)/protogen -plugins $(TOOLS) .

.PHONY: generate-check
generate-check: $(TOOLS)/.generate
	$(TOOLS)/protogen -check -plugins $(TOOLS) .

.PHONY: ci
ci: fmt-check lint generate-check build test ## what a commit must pass: format, lint, generated code, tests

$(TOOLS)/.generate: .ci/tools/go.mod .ci/tools/go.sum $(wildcard .ci/tools/protogen/*.go)
	mkdir -p $(TOOLS)
	cd .ci/tools && go build -o $(TOOLS)/ ./protogen google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
	touch $@

$(TOOLS)/.lint: .ci/tools/go.mod .ci/tools/go.sum
	mkdir -p $(TOOLS)
	cd .ci/tools && go build -o $(TOOLS)/ honnef.co/go/tools/cmd/staticcheck golang.org/x/tools/cmd/goimports
	touch $@

$(TOOLS)/.bench: .ci/tools/go.mod .ci/tools/go.sum
	mkdir -p $(TOOLS)
	cd .ci/tools && go build -o $(TOOLS)/ golang.org/x/perf/cmd/benchstat
	touch $@
