"""`podium keys` and `podium teams`: who may call, from the command line."""
