"""The edge: checks every connection and request before anything else runs.

It limits which clients may connect, how slowly they may send, and how much. It runs in every Python process
that accepts connections: in Ray Serve's proxy, and in the router replicas behind HAProxy.
"""

VARIABLE = "PODIUM_EDGE"
"""Environment variable with a `serving.edge.policy.Policy` as JSON, for processes that get no arguments."""
HOOK = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
"""Ray Serve's variable that names a function in `serving.api.edge_hook`, called before HTTP connections."""
IN_PROXY = "serving.api.edge_hook:in_proxy"
IN_REPLICA = "serving.api.edge_hook:in_replica"
HAPROXY_ADDRESS = "PODIUM_HAPROXY_HTTP_ADDRESS"
"""Variable with the address on which the HAProxy in front listens, if `podium serve` started it."""
