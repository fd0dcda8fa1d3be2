"""Processes and files of the operating system: identities, ends, scratch folders. Imports only ``core``."""
