"""Measurements behind the README's figures: `podium bench`. The bench starts the Podium that it measures.

Most parts share one Ray Serve with the router and a baseline ingress. Parts that deploy something else start
their own Serve. Both sides of every comparison are measured in the same run and take turns, so that other
load on the machine affects both. The bench itself uses HTTP only. Ray Serve imports the applications that a
Serve config names.
"""
