#!/bin/sh
# HAProxy for a server on one machine. Ray's template binds its statistics and metrics ports on every interface and lets everybody write
# to the admin socket, and has no settings for that, so both are put right here, each time Ray starts HAProxy: `-db -f CONFIG ...`.
# PODIUM_HAPROXY is the program.
sed -i -E -e 's/^( *bind )[*]?:([0-9]+)$/\1127.0.0.1:\2/' -e 's/^( *stats socket .* mode )666( .*)?$/\1600\2/' "$3" &&
    exec "$PODIUM_HAPROXY" "$@"
