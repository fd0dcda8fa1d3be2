"""Docker containers: their options, network, addresses, owners and leases, and removal of leftovers."""
