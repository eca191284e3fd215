"""The figures of the README, measured on a Podium that the bench starts itself: `podium bench`.

One Ray Serve runs the router and a baseline ingress; parts that deploy something of their own start a Serve
of their own. Both sides of every comparison are measured in the same run, in turn, so that a busy machine is
busy for both. The bench speaks HTTP only: what is served is named in a Serve config and imported by Serve.
"""
