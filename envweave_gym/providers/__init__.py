"""Servers that this process starts for its environments: providers of replicas, pools and fleets of them."""
