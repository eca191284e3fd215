"""The HTTP API. `app.py` assembles the routes, `run_response.py` owns a run, and `dialects/` has the wire
formats.
"""
