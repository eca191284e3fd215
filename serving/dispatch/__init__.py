"""Sends calls to models: which one, when, how often, and what follows if one fails."""
