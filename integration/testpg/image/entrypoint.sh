#!/bin/sh
# Does what tests expect of the official Postgres image. It reads POSTGRES_USER, POSTGRES_PASSWORD, POSTGRES_DB,
# POSTGRES_HOST_AUTH_METHOD and PGDATA, and passes its arguments to the server. The server starts twice, first to set up
# the database, so "ready to accept connections" is logged twice.
set -eu
PATH=$(echo /usr/lib/postgresql/*/bin):$PATH
export PATH LANG=C.UTF-8
data=${PGDATA:-/var/lib/postgresql/data}

case "${1:-}" in
'' | -*) set -- postgres "$@" ;;
postgres) ;;
*) exec "$@" ;;
esac

if [ "$(id -u)" = 0 ]; then
	mkdir -p "$data" /var/run/postgresql
	chown postgres:postgres "$data" /var/run/postgresql
	chmod 700 "$data"
	exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi

if [ ! -s "$data/PG_VERSION" ]; then
	user=${POSTGRES_USER:-postgres}
	database=${POSTGRES_DB:-$user}
	password=$(mktemp)
	echo "${POSTGRES_PASSWORD:?must be set}" >"$password"
	initdb -D "$data" -U "$user" --encoding=UTF8 --pwfile="$password" \
		--auth-local=trust --auth-host="${POSTGRES_HOST_AUTH_METHOD:-scram-sha-256}" >/dev/null
	rm "$password"
	echo "host all all all ${POSTGRES_HOST_AUTH_METHOD:-scram-sha-256}" >>"$data/pg_hba.conf"
	# This server listens only on its socket, so no client outside the container can connect yet.
	pg_ctl -D "$data" -w start -o "-c listen_addresses='' -c unix_socket_directories=/var/run/postgresql"
	[ "$database" = postgres ] || createdb -h /var/run/postgresql -U "$user" "$database"
	pg_ctl -D "$data" -m fast -w stop
fi

exec "$@" -D "$data" -c listen_addresses='*' -c unix_socket_directories=/var/run/postgresql
