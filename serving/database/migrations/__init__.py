"""Schema versions for Alembic. `serving/database/migrate.py` runs them.

A released version never changes. To add one, copy the newest file in `versions/`, increase its number, and
change `serving/database/schema.py` to match. A test checks that both agree on both databases.
"""
