"""Flask application of the server, with the access checks of every request."""
