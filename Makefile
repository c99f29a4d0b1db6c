# Targets are listed by `make help`.

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo development)
BIN     := bin/sidestream

.PHONY: help build demo test chaos lint compat sim bench bench-broker bench-consume bench-publish consul docs clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

build: ## Build bin/sidestream
	$(GO) build -ldflags "-X main.version=$(VERSION)" -o $(BIN) ./ops/sidestream

demo: build ## Run the main job end to end on 9,999 page views
	$(GO) run ./ops/demo -bin $(BIN)

# Whole-system tests start many processes: two packages at a time are enough.
test: consul ## Run all tests with the race detector
	$(GO) test -race -timeout 20m -p 2 ./...

# CHAOS='-faults.seed=7' repeats the order of a run; see also -faults.keep, and
# -publish.seed and -publish.keep of the publishers' run.
chaos: consul ## Let everything fail for ten minutes, in an order of a seed, under consumers and then under publishers (three minutes of it are in make test)
	$(GO) test -race -count=1 -v -timeout 60m ./ops/chaos -run 'TestRandomFaults|TestChecker|TestPublish' -faults.for=10m -publish.for=10m $(CHAOS)

# SEEDS=2000000 takes hours. SIM='-seed 26840' tells one schedule.
SEEDS ?= 20000
sim: ## Play seeded schedules of replication, and look for known mistakes that are put back
	$(GO) run -tags mutants ./ops/sim/simulate -seeds $(SEEDS) $(SIM)

# discoverytest is test code that is imported, which -ignoretests cannot know.
lint: ## gofmt, go vet, staticcheck, errcheck
	@files=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); \
	if [ -n "$$files" ]; then echo "not formatted (run gofmt -w):"; echo "$$files"; exit 1; fi
	$(GO) vet ./...
	$(GO) tool -modfile=ops/lint/go.mod staticcheck ./...
	$(GO) tool -modfile=ops/lint/go.mod errcheck -ignoretests -exclude ops/lint/errcheck-excludes.txt \
		$$($(GO) list ./... | grep -v /discoverytest)

# Without a package's name go test prints what the tests say while they pass:
# which clients this machine cannot run.
compat: build ## Let other people's Kafka clients produce and consume
	cd ops/compat && SIDESTREAM_BIN=$(CURDIR)/$(BIN) $(GO) test -count=1 -timeout 20m

bench: build ## Measure throughput through one development server
	$(GO) run ./ops/bench -bin $(BIN)

# Takes about an hour; BENCH=-quick takes a few minutes, BENCH='-only fetch' one step.
bench-broker: ## Measure the broker beside Kafka and bare loops on this disk
	$(GO) run ./ops/bench/broker $(BENCH)

# Takes some minutes; BENCH=-quick takes one, BENCH='-only 1KiB' one step. A
# nested module, which is told what the product needs by its go.mod.
bench-consume: ## Measure pulling through a sidecar beside NATS JetStream
	cd ops/bench/consume && $(GO) run -mod=mod . -dir $(CURDIR)/.cache/bench-consume $(BENCH)

# Takes some minutes; BENCH=-quick takes one, BENCH='-only single' one step.
bench-publish: ## Measure publishing through a sidecar beside a bare HTTP handler and NATS JetStream
	cd ops/bench/publish && $(GO) run -mod=mod . -dir $(CURDIR)/.cache/bench-publish $(BENCH)

# Built once from its Go module into a folder that git ignores.
consul: ## Find a real Consul for the tests, or build it when none is on the PATH
	@sh ops/consul/build.sh

docs: ## Write the documents that are generated from the code
	$(GO) run ./ops/sidestream docs ops/docs

clean: ## Remove what was built (the Consul stays)
	rm -rf bin
