"""Settings, errors, logs and counters, which all other packages of the server use; no Flask."""
