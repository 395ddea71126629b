#!/bin/sh
# Builds a Postgres image from Debian's packages, for machines that cannot pull an image: build.sh IMAGE
#
# The build takes about two minutes. It uses the package sources of this machine, so it needs Debian or Ubuntu, Docker
# and mmdebstrap. As root it installs mmdebstrap.
set -eu
image=$1
here=$(cd "$(dirname "$0")" && pwd)

if ! command -v mmdebstrap >/dev/null; then
	if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
		echo "mmdebstrap is not installed: apt-get install mmdebstrap" >&2
		exit 1
	fi
	echo "installing mmdebstrap"
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -qq || true # one broken source of many does not matter here
	apt-get install -y -qq --no-install-recommends mmdebstrap
fi

# Only the distribution's own package sources.
release=$(. /etc/os-release && echo "${VERSION_CODENAME:?no release name in /etc/os-release}")
sources=$(grep -lsE "(^|[[:space:]])$release([[:space:]]|\$)" \
	/etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources || true)
[ -n "$sources" ] || { echo "no package sources for $release in /etc/apt" >&2; exit 1; }

# Use the proxies that apt-get uses on this machine.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
apt-config dump | grep -iE '^Acquire::[a-z]+::proxy' >"$work/apt.conf" || true

mmdebstrap --quiet --variant=essential --include=postgresql --aptopt="$work/apt.conf" \
	--dpkgopt='path-exclude=/usr/share/doc/*' \
	--dpkgopt='path-exclude=/usr/share/man/*' \
	--dpkgopt='path-exclude=/usr/share/locale/*' \
	--customize-hook="copy-in '$here/entrypoint.sh' /" \
	--customize-hook='chmod 755 "$1/entrypoint.sh"' \
	"$release" "$work/image.tar" $sources
docker import \
	--change 'ENTRYPOINT ["/entrypoint.sh"]' \
	--change 'CMD ["postgres"]' \
	--change 'EXPOSE 5432' \
	--change 'VOLUME /var/lib/postgresql/data' \
	"$work/image.tar" "$image"
