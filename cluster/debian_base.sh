#!/bin/sh
# Make a base for cluster/Dockerfile from Debian 12 packages, on a machine that reaches no image registry:
#
#   apt-get install buildah debootstrap
#   cluster/debian_base.sh localhost/podium-base            # as root
#   make image BASE=localhost/podium-base
set -eu
tag=${1:-localhost/podium-base}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$folder/root" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}"
rm -rf "$folder"/root/var/cache/apt/* "$folder"/root/var/lib/apt/lists/* "$folder"/root/usr/share/doc "$folder"/root/usr/share/man
ln -sf python3 "$folder/root/usr/bin/python"
container=$(buildah from scratch)
buildah copy -q "$container" "$folder/root" /
buildah config --env LANG=C.UTF-8 --cmd python3 "$container"
buildah commit -q --rm "$container" "$tag"
echo "$tag"
