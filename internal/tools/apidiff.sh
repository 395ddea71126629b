#!/usr/bin/env bash
# Compares the exported API of the root module with the last tag. An incompatible change fails from version 1 on; before
# that it is listed. Without a tag there is nothing to compare.
set -euo pipefail

tag=$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null) || {
	echo 'SKIPPED: no tag yet, so there is no released API to compare with'
	exit 0
}
bin=$PWD/bin
mkdir -p "$bin"
go build -C internal/tools -o "$bin/" golang.org/x/exp/cmd/apidiff

released=$(mktemp -d)
trap 'rm -rf "$released"' EXIT
git archive "$tag" | tar -x -C "$released"
(cd "$released" && "$bin/apidiff" -m -w "$released/api" "$(go list -m)")
"$bin/apidiff" -m -w "$released/api.now" "$(go list -m)"
incompatible=$("$bin/apidiff" -m -incompatible "$released/api" "$released/api.now")
if [ -z "$incompatible" ]; then
	echo "no incompatible change since $tag"
	exit 0
fi
printf 'Incompatible changes since %s:\n%s\n' "$tag" "$incompatible"
case $tag in v0.*) exit 0 ;; *) exit 1 ;; esac
