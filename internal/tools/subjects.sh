#!/usr/bin/env bash
# Checks that the subjects of commits have at most 72 characters: subjects.sh RANGE
set -euo pipefail
range=${1:?usage: subjects.sh RANGE, such as origin/main..HEAD}

long=$(git log --no-merges --format='%h %s' "$range" | awk '{ hash = $1; sub(/^[^ ]+ /, "") } length($0) > 72 { print hash, length($0), $0 }')
[ -z "$long" ] || { printf 'Subjects longer than 72 characters:\n%s\n' "$long"; exit 1; }
