"""The HTTP API. `app.py` puts the routes together, `run_response.py` owns a run, `dialects/` has what clients
speak, a dialect a few files.
"""
