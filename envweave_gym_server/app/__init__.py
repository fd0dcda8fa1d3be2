"""The Flask application, and the checks of token, host and origin."""
