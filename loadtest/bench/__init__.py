"""Measurements for the README's figures, on a Podium that the bench starts: `podium bench`.

One Ray Serve runs the router and a baseline ingress. Parts that deploy something else start their own Serve.
Both sides of every comparison are measured in the same run, in turn, so that other load affects both. The
bench uses HTTP only; Serve imports what a Serve config names.
"""
