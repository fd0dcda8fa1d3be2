"""Containers of the Docker engine: their options, network, endpoints and owners, and removal of leftovers."""
