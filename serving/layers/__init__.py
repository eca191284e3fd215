"""One concern each, around a worker. Where they are stacked: `serving/stack.py`."""
