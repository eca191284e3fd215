"""Constants for the leases that show which replicas are alive.

A replica renews its lease in one row, by the database's clock. When the lease has expired, any other replica
posts its open holds as lost.
"""

LEASE_S = 15.0
RENEW_S = 5.0
"""Seconds between two renewals, and between two sweeps for dead replicas."""
LEASE_US = int(LEASE_S * 1_000_000)
FORGET_US = 3_600_000_000
"""Microseconds without a renewal after which a replica's row is deleted. Its holds are still swept."""
SWEEP_LIMIT = 500
"""Maximum number of holds that one transaction posts."""
