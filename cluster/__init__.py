"""How Podium is started, sized and watched: set-up, the local server, the demo and the cluster's settings.

Knows processes, ports and files. Knows nothing of plans, workers or HTTP bodies beyond what a client would.
"""
