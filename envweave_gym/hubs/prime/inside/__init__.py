"""Programs that run in the virtual environment of a hub package; they import the standard library and ``verifiers``."""
