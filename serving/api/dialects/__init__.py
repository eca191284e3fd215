"""Wire formats of requests and responses."""
