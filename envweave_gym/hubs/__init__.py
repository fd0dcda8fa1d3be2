"""Environments of other ecosystems by name: OpenEnv and ORS servers, images, Spaces, the Prime Environments Hub."""
