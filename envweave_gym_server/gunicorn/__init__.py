"""The server under gunicorn: one threaded worker, or several equal servers.

All code that relies on internals of gunicorn is in this package. ``tests/server/test_gunicorn_contract.py``
asserts each of these internals, for the version that ``pyproject.toml`` pins.
"""
