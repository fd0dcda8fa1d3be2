"""The Flask application, with the access checks of every request."""
