"""Files and code to start, size and monitor Podium.

Settings, Serve configs, machines and dashboards are files of this package. Its Python code is in `local/`:
set-up, server and demo. It knows processes, ports and files, but plans, workers and HTTP bodies only as a
client does.
"""
