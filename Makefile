# samekey. Two commands matter to most: `make demo` and `make test`.

.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory

MODULES := $(sort $(patsubst %/go.mod,%,$(shell find . -name go.mod -not -path './internal/tools/*')))
TOOL := go tool -modfile=internal/tools/go.mod
BIN := $(CURDIR)/bin
DEMO := $(BIN)/createorder

# A checkout that belongs to another user has no version control to ask.
export GOFLAGS := $(strip $(GOFLAGS) -buildvcs=false)

say = @printf '\n==> %s\n' $(1)
each = for module in $(MODULES); do printf -- '--- %s\n' "$$module"; (cd "$$module" && $(1)); done

.PHONY: help
help: ## show this list
	@echo 'samekey: same key, same effect. Usage: make TARGET'
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' | \
		while IFS=$$'\t' read -r name text; do printf '  %-10s %s\n' "$$name" "$$text"; done

.PHONY: demo
demo: need-demo ## orders, faults and kills on a Postgres of its own; BREAK=key shows what goes wrong without keys
	$(call say,'Building the demo')
	@mkdir -p $(DEMO)
	@go build -C examples/createorder -o $(DEMO)/ ./service ./worker ./vendors
	@go build -C examples/createorder/demo -o $(DEMO)/ .
	$(call say,'Running the demo')
	@BREAK='$(BREAK)' $(DEMO)/demo

.PHONY: test
test: need-test $(BIN)/withpostgres ## all tests on one Postgres server, in some minutes; TESTFLAGS='-run X' for some
	$(call say,'Testing with one Postgres server for all modules')
	@$(BIN)/withpostgres -- internal/tools/testshort.sh -short -count=1 -timeout 40m $(TESTFLAGS) -- $(MODULES)

.PHONY: test-long
test-long: need-test $(BIN)/withpostgres ## the same at full size, all with the race detector, each module with its own versions
	$(call say,'Testing with one Postgres server, one module after another')
	@$(BIN)/withpostgres -- internal/tools/testall.sh -race -count=1 -timeout 60m $(TESTFLAGS) -- $(MODULES)

.PHONY: bench
bench: need-test $(BIN)/withpostgres ## the benchmarks; TESTFLAGS='-short -benchtime 1x' runs each once, on little data
	$(call say,'Running the benchmarks')
	@$(BIN)/withpostgres -- internal/tools/testall.sh -run '^$$' -bench . -benchmem $(TESTFLAGS) -- $(MODULES)

.PHONY: fuzz
fuzz: need-go ## each fuzz target for FUZZTIME, by default 3s
	$(call say,'Fuzzing')
	@internal/tools/fuzz.sh $(or $(FUZZTIME),3s)

.PHONY: generate
generate: need-go ## what sqlc makes of queries/ and schema/
	$(call say,'Generating internal/db (the first build of sqlc takes some minutes)')
	@$(TOOL) sqlc generate

.PHONY: verify
verify: need-go ## generated code is current, format, vet, lint, API, vulnerabilities, go.mod
	$(call say,'Checking the format')
	@unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "$$unformatted"; echo 'run: gofmt -w .'; exit 1; }
	$(call say,'Checking that each go.mod is tidy')
	@for module in $(MODULES) ./internal/tools; do \
		go mod -C "$$module" tidy -diff || { echo "run: go mod -C $$module tidy"; exit 1; }; done
	$(call say,'Vetting')
	@$(call each,go vet ./...)
	@$(MAKE) lint
	@$(MAKE) apidiff
	@$(MAKE) vuln
	$(call say,'Checking that internal/db is what sqlc makes (the first build of sqlc takes some minutes)')
	@$(TOOL) sqlc diff || { echo 'run: make generate'; exit 1; }

.PHONY: lint
lint: need-go ## the linters of .golangci.yml
	$(call say,'Linting (the first build of golangci-lint takes a minute or two)')
	@mkdir -p $(BIN) && go build -C internal/tools -o $(BIN)/golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	@$(call each,$(BIN)/golangci-lint run ./...)

.PHONY: vuln
vuln: need-go ## govulncheck, where its database can be reached
	$(call say,'Looking for known vulnerabilities')
	@internal/tools/vuln.sh $(MODULES)

.PHONY: apidiff
apidiff: need-go ## the exported API beside that of the last tag
	$(call say,'Comparing the API with the last tag')
	@internal/tools/apidiff.sh

.PHONY: image
image: need-go ## the worker's container image, samekey-worker
	@mkdir -p $(BIN)/image
	@CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o $(BIN)/image/worker ./cmd/worker
	@cp /etc/ssl/certs/ca-certificates.crt $(BIN)/image/
	docker build -f cmd/worker/Dockerfile -t samekey-worker $(BIN)/image

.PHONY: clean
clean: ## remove what was built here
	rm -rf $(BIN)

# Always asked: go knows what is current.
.PHONY: $(BIN)/withpostgres
$(BIN)/withpostgres: need-go
	@mkdir -p $(BIN) && go build -C integration -o $@ ./cmd/withpostgres

.PHONY: need-go need-demo need-test
need-go need-demo need-test: need-%:
	@internal/tools/need.sh $*
