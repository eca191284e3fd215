"""`podium doctor`: what is wrong with a machine, with settings or with a server, and what to do about it."""
