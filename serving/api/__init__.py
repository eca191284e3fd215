"""The HTTP API: a dialect a file. `app.py` puts them together, `stream.py` owns a run, `errors.py` has the
one table.
"""
