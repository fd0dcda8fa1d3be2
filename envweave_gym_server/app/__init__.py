"""The Flask application: its settings, state, access, errors, log and metrics."""
