"""A curriculum of ordinary requests, for a conductor that will lead teams it has never seen.

SYNTHETIC: requests are filled from templates, teams are drawn from cards, and workers are programs that know
which worker can do which part. Figures from here state how well plans fit cards, and nothing about real
models.
"""
