#!/usr/bin/env bash
# Runs each fuzz target of the root module for a time: fuzz.sh 3s
set -euo pipefail
time=${1:?usage: fuzz.sh DURATION}

targets=$(grep -rhoE --include='*_test.go' '^func Fuzz\w+' . | wc -l)
ran=0
while IFS=: read -r file name; do
	printf -- '--- %s %s\n' "$(dirname "$file")" "$name"
	go test -run '^$' -fuzz "^$name\$" -fuzztime "$time" "$(dirname "$file")"
	ran=$((ran + 1))
done < <(grep -roE --include='*_test.go' '^func Fuzz\w+' . | sed 's/:func /:/' | sort)
[ "$ran" -gt 0 ] && [ "$ran" = "$targets" ] || { echo "ran $ran of $targets fuzz targets"; exit 1; }
