#!/usr/bin/env bash
# Tests the packages of all modules at once, in a workspace made for the run: testshort.sh [flag ...] -- MODULE...
#
# The packages that `concurrent` matches run with the race detector: they start goroutines that share memory. The others
# run at the same time without it, since the detector multiplies the CPU time of their tests.
set -euo pipefail

flags=()
while [ "$1" != -- ]; do
	flags+=("$1")
	shift
done
shift

concurrent='/(dispatcher|outbox|processed|samekeytest|internal/(intent|limit|wake|wire|wiretest))(/|$)'

export GOWORK=$PWD/bin/go.work
mkdir -p bin
rm -f "$GOWORK"
go work init "$@"

packages=$(go list "${@/%//...}")
mapfile -t with_race < <(grep -E "$concurrent" <<<"$packages")
mapfile -t without_race < <(grep -vE "$concurrent" <<<"$packages")

# Packages wait more than they compute, so there are more of them at once than cores. The output of a package comes as
# one block.
failed=0
go test -race -p 2 "${flags[@]}" "${with_race[@]}" &
go test -p 2 "${flags[@]}" "${without_race[@]}" || failed=1
wait $! || failed=1
exit $failed
