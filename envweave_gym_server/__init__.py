"""The server that runs envweave-gym environments for other processes; its parts arrive with the remote layer."""

__version__ = "0.1.0"
