"""The server as processes: gunicorn with one threaded worker, and several servers alike."""
