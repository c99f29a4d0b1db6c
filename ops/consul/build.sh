#!/bin/sh
# Prints the path of a consul binary for tests: the one on PATH, else the one
# built from this folder's module (MPL-2.0, see go.mod for the version) into
# <repository>/.cache/consul. A cold build takes several minutes and 2 GB of
# module and build cache; safe to run twice at once.
set -eu

if found=$(command -v consul); then
	echo "$found"
	exit 0
fi

here=$(cd "$(dirname "$0")" && pwd)
cache=$(cd "$here/../.." && pwd)/.cache/consul
out=$cache/consul
if [ -x "$out" ]; then
	echo "$out"
	exit 0
fi

mkdir -p "$cache"
# The second of two waits for the first. Without flock both build, and the
# rename below still leaves a whole binary.
if command -v flock >/dev/null 2>&1; then
	exec 9>"$cache/lock"
	flock 9
	if [ -x "$out" ]; then
		echo "$out"
		exit 0
	fi
fi

tmp=$(mktemp "$cache/consul.XXXXXX")
trap 'rm -f "$tmp"' EXIT INT TERM
echo "building consul from ops/consul (several minutes when cold)" >&2
# One package at a time: the linker alone takes over a gigabyte. GOFLAGS and
# GOWORK of the caller must not change what is built.
(cd "$here" && GOFLAGS= GOWORK=off go build -p 1 -ldflags '-s -w' -o "$tmp" github.com/hashicorp/consul) >&2
chmod 755 "$tmp"
mv "$tmp" "$out"
echo "$out"
