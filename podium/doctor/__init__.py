"""`podium doctor`: find problems of a machine, settings, a cluster's files or a server, and suggest fixes."""
