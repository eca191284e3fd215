"""The edge: checks of each connection and request before anything else runs. They bound who may call, how slowly and how
much.

It runs wherever a Python process accepts connections: in Ray Serve's proxy, and in the router replica behind
HAProxy.
"""

VARIABLE = "PODIUM_EDGE"
"""The variable that holds a `serving.edge.policy.Policy` as JSON, for processes that are given no
arguments."""
HOOK = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
"""Ray Serve's variable that names the function of `serving.api.edge_hook` which a process calls before it
accepts HTTP."""
IN_PROXY = "serving.api.edge_hook:in_proxy"
IN_REPLICA = "serving.api.edge_hook:in_replica"
