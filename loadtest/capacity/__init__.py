"""Capacity of a Podium of any size: the machines that it needs, and how long its users wait. `podium
capacity`.

A discrete-event simulation covers arrivals, routers, a conductor, workers with continuous batching, API
workers, and Serve's autoscaling. Every input number is in `inputs.yaml`, with its source and date. The
simulation imports none of the code that it models.
"""
