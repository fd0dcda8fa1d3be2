"""Environments of other ecosystems by name: servers of OpenEnv and ORS, Docker images, Hugging Face Spaces."""
