"""A curriculum of ordinary requests, for a conductor that will lead teams it has never met.

SYNTHETIC: requests are filled from templates, teams are drawn from cards, and programs that know which
worker can do which part take the workers' place. Figures from here say how well plans fit cards, and
nothing about real models.
"""
