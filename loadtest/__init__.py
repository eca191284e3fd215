"""Load on a running Podium, over HTTP only. Knows nothing of how it is built."""
