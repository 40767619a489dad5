#!/usr/bin/env bash
# Provides the files of Debian packages: tools/debian.sh FOLDER PACKAGE...
#
# Root installs the packages. Anyone else gets them unpacked below FOLDER, and the system stays as
# it is. Prints nothing; fails if a package cannot be had.
set -euo pipefail
folder=$1 && shift
command -v apt-get >/dev/null || exit 1
limit() { timeout 300 "$@" </dev/null >/dev/null 2>&1; }

if [[ $(id -u) == 0 ]]; then
    export DEBIAN_FRONTEND=noninteractive
    install=(apt-get install --yes --no-install-recommends "$@")
    limit "${install[@]}" || { limit apt-get update && limit "${install[@]}"; }
    exit
fi

mkdir -p "$folder"/apt/{state/lists,cache/archives}/partial
cd "$folder"
apt=(apt-get -o "Dir::State=$PWD/apt/state" -o "Dir::Cache=$PWD/apt/cache")
limit "${apt[@]}" update
limit "${apt[@]}" download "$@"
for package in *.deb; do dpkg-deb --extract "$package" .; done
rm -rf apt ./*.deb
