"""`podium doctor`: find what is wrong with a machine, settings, a cluster's files or a server, and say what to do."""
