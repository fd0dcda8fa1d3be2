"""Writer of Hugging Face tokenizer folders, from a GGUF file's metadata or from a tokenizer trained here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

_CONTROL_TOKEN = 3
"""Type of special tokens in GGUF."""
_SPLITTERS: dict[str, list[Any]] = {
    "smollm": [pre_tokenizers.Digits(individual_digits=True)],
    "gpt-2": [],
}


def tokenizer_of_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """Return the byte-level BPE tokenizer of a GGUF file; raise ``ValueError`` for another kind."""
    kind, splitter = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2" or splitter not in _SPLITTERS:
        raise ValueError(
            f"the GGUF file has a tokenizer {kind!r} that splits text like {splitter!r}; supported is 'gpt2' "
            f"with {' or '.join(map(repr, _SPLITTERS))}. Load the model from its Hugging Face files instead"
        )
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges: list[str] = metadata["tokenizer.ggml.merges"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    pairs = [(first, second) for first, second in (merge.split(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    use_byte_level(tokenizer, _SPLITTERS[splitter])
    types: list[int] = metadata["tokenizer.ggml.token_type"]
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def use_byte_level(tokenizer: Tokenizer, splitters: list[Any]) -> None:
    """Let a BPE tokenizer work on bytes, after the given splitters."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splitters, byte_level])
    tokenizer.decoder = decoders.ByteLevel()


def write_gguf_tokenizer(metadata: Mapping[str, Any], folder: Path) -> None:
    """Write the tokenizer of a GGUF file to a folder."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    ids = {
        name: metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "padding", "unknown")
    }
    named = {name: tokens[index] for name, index in ids.items() if index is not None}
    write_tokenizer(
        tokenizer_of_gguf(metadata),
        folder,
        bos=named.get("bos"),
        eos=named["eos"],
        pad=named.get("padding"),
        unknown=named.get("unknown"),
        chat_template=metadata.get("tokenizer.chat_template"),
    )


def write_tokenizer(
    tokenizer: Tokenizer,
    folder: Path,
    *,
    eos: str,
    bos: str | None = None,
    pad: str | None = None,
    unknown: str | None = None,
    chat_template: str | None = None,
) -> None:
    """Write a folder that ``AutoTokenizer.from_pretrained`` loads."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": bos,
        "eos_token": eos,
        "pad_token": pad,
        "unk_token": unknown,
        "chat_template": chat_template,
        "clean_up_tokenization_spaces": False,
    }
    given = {name: value for name, value in settings.items() if value is not None}
    (folder / "tokenizer_config.json").write_text(json.dumps(given, indent=2) + "\n", encoding="utf-8")
