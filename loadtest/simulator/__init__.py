"""What a Podium of any size would need, and how long its users would wait: `podium capacity`.

Discrete events: arrivals, routers, a conductor and workers in continuous batching, API workers, Serve's autoscaling. Every
number that goes in is in `inputs.yaml`, with its source and date. It knows nothing of the code it models and imports none of it.
"""
