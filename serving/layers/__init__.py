"""One concern each, around a worker. Where they are stacked: `serving/pool.py`."""
