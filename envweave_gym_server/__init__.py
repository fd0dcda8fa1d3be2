"""The server of envweave-gym environments; its parts arrive with the remote layer."""

__version__ = "0.1.0"
