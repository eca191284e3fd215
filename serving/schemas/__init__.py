"""JSON Schemas of clients: what is taken, what holds to them, and what of them each provider understands."""
