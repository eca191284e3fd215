"""How long a replica counts as alive. Numbers only.

A replica renews its lease in one row, by the database's clock. When it has not for as long as the lease, any
other replica posts its open holds as lost.
"""

LEASE_S = 15.0
RENEW_S = 5.0
"""Between two renewals, and between two sweeps for the dead."""
LEASE_US = int(LEASE_S * 1_000_000)
FORGET_US = 3_600_000_000
"""A replica that has been silent for so long has no row any more; what it still holds is swept all the
same.
"""
SWEEP_LIMIT = 500
"""Holds that one transaction posts."""
