"""Base models: a transformer with its tokenizer, loaded from Hugging Face files or from a GGUF file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from envweave_gym.os_support.xdg_folders import cache_folder
from envweave_gym_server.tinker.models.cache_folders import made_once
from envweave_gym_server.tinker.models.gguf import GgufFile, read_gguf
from envweave_gym_server.tinker.models.llama import ModelConfig, Transformer
from envweave_gym_server.tinker.models.tokenizer_files import write_gguf_tokenizer

ARCHITECTURES = ("llama", "qwen2", "qwen3")
_NEEDED = "a folder with config.json, tokenizer.json and *.safetensors, or a .gguf file"


@dataclass(frozen=True)
class BaseModel:
    """A transformer under its public name, and a folder that ``AutoTokenizer`` can load."""

    name: str
    transformer: Transformer
    tokenizer_folder: Path
    eos: frozenset[int]
    """Tokens that end a sequence if a request does not name its own."""

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer without its chat template."""
        return Tokenizer.from_file(str(self.tokenizer_folder / "tokenizer.json"))

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, special tokens included."""
        return self.tokenizer.decode(list(tokens), skip_special_tokens=False)


def load_base(name: str, path: str | Path) -> BaseModel:
    """Load a folder of Hugging Face files (llama, qwen2, qwen3 with safetensors) or a ``.gguf`` file (llama).

    Raises ``ValueError`` for another architecture and ``FileNotFoundError`` for a missing file.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"there is no model at {path}; give {_NEEDED}")
    return _load_folder(name, path) if path.is_dir() else _load_gguf(name, path)


def _load_gguf(name: str, path: Path) -> BaseModel:
    file = read_gguf(path)
    transformer = Transformer(file.config(), file.weights())
    eos = frozenset({int(file.metadata["tokenizer.ggml.eos_token_id"])})
    return BaseModel(name, transformer, _gguf_tokenizer_folder(file, path), eos)


def _gguf_tokenizer_folder(file: GgufFile, path: Path) -> Path:
    """Return a cached folder with the file's tokenizer; its name changes with the tokenizer."""
    settings = {key: value for key, value in file.metadata.items() if key.startswith("tokenizer.")}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    folder = cache_folder() / "tokenizers" / f"{path.stem}-{digest}"
    return made_once(folder, lambda unfinished: write_gguf_tokenizer(settings, unfinished))


def _load_folder(name: str, folder: Path) -> BaseModel:
    for needed in ("config.json", "tokenizer.json"):
        if not (folder / needed).exists():
            raise FileNotFoundError(f"{folder} has no {needed}; give {_NEEDED}")
    settings = _read_json(folder / "config.json")
    weights: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights.update(load_file(file))
    if not weights:
        raise FileNotFoundError(f"{folder} has no *.safetensors; give {_NEEDED}")
    return BaseModel(name, Transformer(config_of(settings), weights), folder, _eos(folder, settings))


def config_of(settings: Mapping[str, Any]) -> ModelConfig:
    """Return the shape of a model from its ``config.json``; raise ``ValueError`` if it is not supported."""
    architecture = settings.get("model_type")
    if architecture not in ARCHITECTURES:
        raise ValueError(
            f"models of the type {architecture!r} are not supported; {', '.join(ARCHITECTURES)} are"
        )
    rope: Mapping[str, Any] = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", None):
        raise ValueError(f"rotary embeddings of the type {kind!r} are not supported; only 'default' is")
    if settings.get("mlp_bias") or settings.get("use_sliding_window"):
        raise ValueError("models with mlp_bias or use_sliding_window are not supported")
    if settings.get("hidden_act", "silu") != "silu":
        raise ValueError(f"the activation {settings['hidden_act']!r} is not supported; only 'silu' is")
    heads, width = settings["num_attention_heads"], settings["hidden_size"]
    if architecture != "qwen2" and settings.get("attention_bias"):
        raise ValueError(f"models of the type {architecture!r} with attention_bias are not supported")
    return ModelConfig(
        layers=settings["num_hidden_layers"],
        width=width,
        heads=heads,
        key_value_heads=settings.get("num_key_value_heads") or heads,
        head_size=settings.get("head_dim") or width // heads,
        feed_forward_width=settings["intermediate_size"],
        vocabulary=settings["vocab_size"],
        context=settings["max_position_embeddings"],
        norm_eps=settings["rms_norm_eps"],
        rope_theta=rope.get("rope_theta") or settings.get("rope_theta", 10_000.0),
        tied=settings.get("tie_word_embeddings", False),
        attention_bias=architecture == "qwen2",
        query_key_norm=architecture == "qwen3",
    )


def _eos(folder: Path, settings: Mapping[str, Any]) -> frozenset[int]:
    generation = folder / "generation_config.json"
    if generation.exists():
        settings = {**settings, **_read_json(generation)}
    eos = settings.get("eos_token_id")
    return frozenset([eos] if isinstance(eos, int) else eos or [])


def _read_json(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8"))
