#!/usr/bin/env bash
# Sees to it that what a make target needs is there: need.sh go|demo|test.
# As root on a Debian or Ubuntu it installs what is missing. Everybody else is
# told what to install. Go itself is never installed.
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
		fail "$why" "Install it, such as: apt-get install $*"
	fi
	say "$why Installing $*"
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -qq || true # one broken source of many does not matter here
	apt-get install -y -qq --no-install-recommends -o Dpkg::Options::=--force-confold "$@" >/dev/null
}

need_go() {
	command -v go >/dev/null || fail \
		'Go 1.26 or later is needed, and there is no go command.' \
		'Install it from your distribution or from the Go project, and put it on PATH.'
	go list -m >/dev/null || fail "Go 1.26 or later is needed; this is $(go version)."
}

# The race detector and sqlc need a C compiler.
need_cc() {
	command -v "$(go env CC)" >/dev/null && return
	install 'A C compiler is needed, and there is none.' gcc libc6-dev
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

# The demo brings up a server of its own, and so do the tests where there is no
# Docker. The package must not start a server at port 5432 besides.
need_postgres() {
	has_postgres && return
	if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
		local conf=/etc/postgresql-common/createcluster.conf
		[ -e "$conf" ] || { mkdir -p "${conf%/*}" && echo 'create_main_cluster = false' >"$conf"; }
		install 'There is no Postgres server on this machine.' postgresql
	else
		say 'There is no Postgres server on this machine: one will be downloaded.' \
			'Where that fails, install one, such as: apt-get install postgresql'
	fi
}

# One test drops packets in a network namespace, which only root on Linux can make.
# Without root, the test is skipped and says so.
need_network() {
	[ "$(uname)" = Linux ] && [ "$(id -u)" = 0 ] || return 0
	command -v ip >/dev/null && command -v nft >/dev/null && return
	install 'A test of dropped packets needs ip and nft.' iproute2 nftables
}

cd "$(dirname "$0")/../.."
case ${1:-} in
go) need_go && need_cc ;;
demo) need_go && need_postgres ;;
test) need_go && need_cc && need_postgres && need_network ;;
*) fail 'usage: need.sh go|demo|test' ;;
esac
