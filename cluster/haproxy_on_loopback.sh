#!/bin/sh
# HAProxy for a server on one machine. Ray's template binds its statistics and metrics ports on every interface and has no setting
# for that, so the addresses are put right here, each time Ray starts HAProxy: `-db -f CONFIG ...`. PODIUM_HAPROXY is the program.
sed -i -E 's/^( *bind )[*]?:([0-9]+)$/\1127.0.0.1:\2/' "$3" && exec "$(dirname "$0")/haproxy_guarded.sh" "$@"
