"""The store: where it is, its schema and versions, and the one writer of what every paid call needs.

Two databases, one behaviour: SQLite on one machine, PostgreSQL where routers run on several.
"""
