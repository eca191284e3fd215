"""What a Podium of any size needs, and how long its users wait: `podium capacity`.

Discrete events: arrivals, routers, a conductor and workers with continuous batching, API workers, Serve's
autoscaling. Every input number is in `inputs.yaml`, with its source and date. The simulation imports none of
the code that it models.
"""
