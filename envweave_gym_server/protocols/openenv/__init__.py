"""OpenEnv's protocol: each ID of this server is a server that OpenEnv's own clients play, unmodified."""
