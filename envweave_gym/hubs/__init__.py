"""Environments of other ecosystems by name: servers of OpenEnv, Docker images, Hugging Face Spaces."""
