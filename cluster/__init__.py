"""How Podium is started, sized and watched. Settings, Serve configs, machines and dashboards are files
here; the Python is in `local/` (set-up, server, demo) and `check/` (do the files agree, what do they cost).

Knows processes, ports and files. Knows nothing of plans, workers or HTTP bodies beyond what a client would.
"""
