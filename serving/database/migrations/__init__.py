"""Versions of the store's schema, for Alembic; `serving/database/migrate.py` runs them.

A released version never changes. For a new one, copy the newest file of `versions/`, number it on, and change
`serving/database/schema.py` alike: a test says that both agree, on both databases.
"""
