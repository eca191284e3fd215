"""Store: its address, schema and versions, and the writer for everything that a paid call needs.

SQLite on one machine and PostgreSQL for routers on several machines behave the same.
"""
