#!/bin/sh
# Make a base for cluster/Dockerfile from Debian 12 packages, on a machine that reaches no image registry:
#
#   apt-get install buildah debootstrap
#   cluster/debian_base.sh localhost/podium-base            # as root
#   make image BASE=localhost/podium-base
set -eu
tag=${1:-localhost/podium-base}
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
folder=$(mktemp -d)
root=$folder/root
trap 'rm -rf "$folder"' EXIT
debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$root" "$mirror"
cat > "$root/etc/apt/sources.list" << END
deb $mirror bookworm main
deb $mirror bookworm-updates main
deb ${DEBIAN_SECURITY_MIRROR:-http://deb.debian.org/debian-security} bookworm-security main
END
chroot "$root" sh -c 'apt-get update && DEBIAN_FRONTEND=noninteractive apt-get upgrade -y && apt-get clean'
# Licenses stay. resolv.conf and hostname are this machine's.
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/log/*.log "$root"/var/log/apt "$root/usr/share/man" "$root/etc/resolv.conf" "$root/etc/hostname"
find "$root/usr/share/doc" -type f ! -name copyright -delete
ln -sf python3 "$root/usr/bin/python"
container=$(buildah from scratch)
buildah copy -q "$container" "$root" /
buildah config --env LANG=C.UTF-8 --cmd python3 "$container"
buildah commit -q --rm "$container" "$tag"
echo "$tag"
