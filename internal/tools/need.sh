#!/usr/bin/env bash
# Ensures that this machine has what a make target needs: need.sh go|demo|test
#
# As root on Debian or Ubuntu it installs missing packages. Otherwise it prints what to install. It never installs Go.
set -euo pipefail

say() { printf '==> %s\n' "$*"; }
fail() {
	printf '%s\n' "$@" >&2
	exit 1
}

# install WHY PACKAGE...: from the distribution, or fail with advice.
install() {
	local why=$1
	shift
	if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
		fail "$why" "Install it, for example: apt-get install $*"
	fi
	say "$why Installing $*"
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -qq || true # one broken source of many does not matter here
	apt-get install -y -qq --no-install-recommends -o Dpkg::Options::=--force-confold "$@" >/dev/null
}

need_go() {
	command -v go >/dev/null || fail \
		'Go 1.26 or later is required, and the go command was not found.' \
		'Install it from your distribution or from the Go project, and put it on PATH.'
	go list -m >/dev/null || fail "Go 1.26 or later is required; this is $(go version)."
}

# The race detector and sqlc need a C compiler.
need_cc() {
	command -v "$(go env CC)" >/dev/null && return
	install 'A C compiler is required, but not installed.' gcc libc6-dev
}

has_postgres() {
	local bin
	for bin in "$(pg_config --bindir 2>/dev/null)" /usr/lib/postgresql/*/bin /usr/pgsql-*/bin \
		/opt/homebrew/opt/postgresql*/bin /usr/local/opt/postgresql*/bin \
		/Applications/Postgres.app/Contents/Versions/*/bin /usr/local/pgsql/bin; do
		[ -x "$bin/initdb" ] && [ -x "$bin/postgres" ] && return
	done
	return 1
}

# The demo starts its own server, and so do the tests without Docker. So the package must not start one on port 5432.
need_postgres() {
	has_postgres && return
	if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
		local conf=/etc/postgresql-common/createcluster.conf
		[ -e "$conf" ] || { mkdir -p "${conf%/*}" && echo 'create_main_cluster = false' >"$conf"; }
		install 'This machine has no Postgres server.' postgresql
	else
		say 'This machine has no Postgres server, so one will be downloaded.' \
			'If that fails, install one, for example: apt-get install postgresql'
	fi
}

# One test drops packets in a network namespace, which only root on Linux can create. Without root, the test is skipped.
need_network() {
	[ "$(uname)" = Linux ] && [ "$(id -u)" = 0 ] || return 0
	command -v ip >/dev/null && command -v nft >/dev/null && return
	install 'The test of dropped packets requires ip and nft.' iproute2 nftables
}

cd "$(dirname "$0")/../.."
case ${1:-} in
go) need_go && need_cc ;;
demo) need_go && need_postgres ;;
test) need_go && need_cc && need_postgres && need_network ;;
*) fail 'usage: need.sh go|demo|test' ;;
esac
