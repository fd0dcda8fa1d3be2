"""The tiny base model: about a million parameters, trained in seconds on synthetic chats, and cached."""

from __future__ import annotations

from pathlib import Path

TINY_NAME = "envweave/tiny"
"""Name under which the server offers the model."""


def tiny_model_folder(cache: Path | None = None) -> Path:
    """Return the folder of the tiny model for ``load_base``; train it first if the cache does not have it.

    ``cache`` is the folder of caches, ``~/.cache/envweave`` or that of ``XDG_CACHE_HOME`` by default.
    """
    raise NotImplementedError
