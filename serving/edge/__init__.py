"""The edge: checks every connection and request before anything else runs.

It bounds who may connect, how slowly and how much a client may send. It runs in every Python process that
accepts connections: in Ray Serve's proxy, and in the router replicas behind HAProxy.
"""

VARIABLE = "PODIUM_EDGE"
"""Environment variable with a `serving.edge.policy.Policy` as JSON, for processes that get no arguments."""
HOOK = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
"""Ray Serve's variable that names a function of `serving.api.edge_hook`. A process calls it before it accepts
HTTP.
"""
IN_PROXY = "serving.api.edge_hook:in_proxy"
IN_REPLICA = "serving.api.edge_hook:in_replica"
