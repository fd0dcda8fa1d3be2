"""Settings, errors, log lines and counters: what every room of the server uses, without Flask."""
