"""Settings, errors, log lines and counters, which all other packages of the server use; without Flask."""
