#!/usr/bin/env bash
# Runs go test in every module: testall.sh [flag ...] -- MODULE...
# All modules are tested, also after one has failed.
set -euo pipefail

flags=()
while [ "$1" != -- ]; do
	flags+=("$1")
	shift
done
shift

failed=()
for module in "$@"; do
	printf -- '--- %s: go test %s ./...\n' "$module" "${flags[*]}"
	(cd "$module" && go test "${flags[@]}" ./...) || failed+=("$module")
done
if [ ${#failed[@]} -gt 0 ]; then
	printf 'FAIL: %s\n' "${failed[*]}"
	exit 1
fi
