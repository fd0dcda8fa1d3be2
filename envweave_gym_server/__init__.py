"""The server of envweave-gym environments; its parts arrive with the remote layer."""
