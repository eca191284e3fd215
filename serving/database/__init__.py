"""Database of the store: its address, its schema and migrations, and its connections and writer.

The store uses SQLite on one machine, or PostgreSQL for routers on several machines. Both behave the same.
"""
