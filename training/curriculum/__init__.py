"""A curriculum of ordinary requests, for a conductor that will lead teams it has never seen.

SYNTHETIC: requests are filled in from templates, teams are drawn from cards, and workers are programs that
know which worker can do which part. The figures show how well plans fit the cards. They show nothing about
real models.
"""
