"""Classes that run in Ray Serve replicas. Only `build.py` turns them into deployments."""
