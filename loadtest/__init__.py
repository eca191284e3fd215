"""Load test: users of a running Podium, over HTTP only. Knows nothing of how Podium is built."""
