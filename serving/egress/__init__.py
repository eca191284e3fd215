"""Limits on outgoing connections: which addresses the server may connect to.

An address is checked when a connection is opened (docs/decisions/0034-egress-checks-at-the-socket.md).
"""
