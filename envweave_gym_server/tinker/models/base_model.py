"""Base models: a transformer with its tokenizer, loaded from Hugging Face files or from a GGUF file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from envweave_gym_server.tinker.models.llama import Transformer


@dataclass(frozen=True)
class BaseModel:
    """A transformer under its public name, and a folder that ``AutoTokenizer`` can load."""

    name: str
    transformer: Transformer
    tokenizer_folder: Path
    eos: frozenset[int]
    """Tokens that end a sequence if a request does not name its own."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, special tokens included."""
        raise NotImplementedError


def load_base(name: str, path: str | Path) -> BaseModel:
    """Load a folder of Hugging Face files (llama, qwen2, qwen3 with safetensors) or a ``.gguf`` file (llama).

    Raises ``ValueError`` for another architecture and ``FileNotFoundError`` for a missing file.
    """
    raise NotImplementedError
