"""The server under gunicorn: one threaded worker, or several equal servers.

Everything that relies on internals of gunicorn is in this room. ``tests/server/test_gunicorn_contract.py``
asserts each of them, for the version that ``pyproject.toml`` pins.
"""
