"""HTTP paths that the Tinker SDK calls, under ``/api/v1``."""
