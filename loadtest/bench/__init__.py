"""The figures of the README, measured on a Podium of the bench's own: `make bench`, or `podium bench`.

One run starts one Ray Serve with the router and a bare ingress beside it, measures, and takes it down. Everything that is
compared is measured in that run, turn about, so that a busy machine is busy for both sides. It speaks HTTP only: what is
served is named in a Serve config and imported by Serve.
"""
