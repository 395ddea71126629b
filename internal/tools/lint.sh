#!/usr/bin/env bash
# Lints the modules with the linters of .golangci.yml, each built from internal/tools/go.mod: lint.sh MODULE...
#
# golangci-lint itself is not a tool of that module: its build takes longer than all other checks together. A finding
# that is right as it is has a comment on its line or the line before: //nolint:NAME // the reason.
set -euo pipefail

bin=$PWD/bin
mkdir -p "$bin"
go build -C internal/tools -o "$bin/" github.com/golangci/misspell/cmd/misspell github.com/mgechev/revive \
	github.com/polyfloyd/go-errorlint github.com/sivchari/containedctx/cmd/containedctx honnef.co/go/tools/cmd/staticcheck

# check NAME COMMAND...: prints what the command finds, and fails if there is something.
check() {
	local name=$1 output line file number found=0
	shift
	output=$("$@" 2>&1) || true
	while IFS= read -r line; do
		case $line in '' | '#'*) continue ;; esac
		IFS=: read -r file number _ <<<"$line"
		if [ -f "$file" ] && sed -n "$((number - 1)),${number}p" "$file" 2>/dev/null | grep -q "//nolint:.*$name.* // ."; then continue; fi
		printf '%s (%s)\n' "$line" "$name"
		found=1
	done <<<"$output"
	return $found
}

failed=0
find . -path ./bin -prune -o -type f \( -name '*.go' -o -name '*.md' -o -name '*.sql' -o -name '*.sh' -o -name '*.y*ml' \) -print0 |
	xargs -0 "$bin/misspell" -error || failed=1
for module in "$@"; do
	printf -- '--- %s\n' "$module"
	pushd "$module" >/dev/null
	check staticcheck "$bin/staticcheck" ./... || failed=1
	check errorlint "$bin/go-errorlint" ./... || failed=1
	check containedctx go vet -vettool="$bin/containedctx" ./... || failed=1
	popd >/dev/null
done
check revive "$bin/revive" -config internal/tools/revive.toml ./... || failed=1
exit $failed
