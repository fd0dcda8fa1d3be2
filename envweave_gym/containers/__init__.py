"""The container engine: options, networks, endpoints and owners of containers, and removal of leftovers."""
