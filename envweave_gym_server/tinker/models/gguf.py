"""Reader of GGUF files with models of the llama architecture; tensors are dequantised to float32 with NumPy."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from envweave_gym_server.tinker.models.llama import ModelConfig

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
_MAGIC = b"GGUF"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_TOP_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}


@dataclass(frozen=True)
class GgufFile:
    """The metadata of a file, and a function that reads each tensor."""

    metadata: dict[str, Any]
    tensors: dict[str, Callable[[], Floats]]

    def config(self) -> ModelConfig:
        """Return the shape of the model; raise ``ValueError`` if it is not a llama."""
        architecture = self.metadata.get("general.architecture")
        if architecture != "llama":
            raise ValueError(f"the GGUF file has a model of the architecture {architecture!r}, not 'llama'")
        values = {
            key.removeprefix("llama."): value
            for key, value in self.metadata.items()
            if key.startswith("llama.")
        }
        heads, width = values["attention.head_count"], values["embedding_length"]
        return ModelConfig(
            layers=values["block_count"],
            width=width,
            heads=heads,
            key_value_heads=values.get("attention.head_count_kv", heads),
            head_size=values.get("attention.key_length", width // heads),
            feed_forward_width=values["feed_forward_length"],
            vocabulary=len(self.metadata["tokenizer.ggml.tokens"]),
            context=values["context_length"],
            norm_eps=values["attention.layer_norm_rms_epsilon"],
            rope_theta=values.get("rope.freq_base", 10_000.0),
            tied="output.weight" not in self.tensors,
        )

    def weights(self) -> dict[str, Tensor]:
        """Return the model's weights by their Hugging Face names."""
        config = self.config()
        weights: dict[str, Tensor] = {}
        for name, read in self.tensors.items():
            if (hugging_face := _hugging_face_name(name)) is not None:
                values = _unpermuted(config, name, read())
                weights[hugging_face] = torch.from_numpy(np.require(values, requirements=["C", "W"]))
        return weights


def read_gguf(path: Path) -> GgufFile:
    """Read the metadata of a file; tensors are read when they are needed."""
    content = np.memmap(path, dtype=np.uint8, mode="r")
    reader = _Reader(content)
    if content[:4].tobytes() != _MAGIC:
        raise ValueError(f"{path} is not a GGUF file: it does not begin with 'GGUF'")
    reader.offset = 8
    tensor_count, key_count = reader.scalar("Q"), reader.scalar("Q")
    metadata = {reader.string(): reader.value(reader.scalar("I")) for _ in range(key_count)}
    entries = [reader.tensor_entry() for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    start = -(-reader.offset // alignment) * alignment
    return GgufFile(metadata, {entry.name: entry.reader(content, start) for entry in entries})


class _Reader:
    """Reads values one after another from the beginning of a file."""

    def __init__(self, content: Bytes) -> None:
        self._content = memoryview(content.data)
        self.offset = 0

    def scalar(self, kind: str) -> Any:
        [value] = struct.unpack_from("<" + kind, self._content, self.offset)
        self.offset += struct.calcsize("<" + kind)
        return value

    def string(self) -> str:
        length = self.scalar("Q")
        self.offset += length
        return bytes(self._content[self.offset - length : self.offset]).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            item, count = self.scalar("I"), self.scalar("Q")
            return [self.value(item) for _ in range(count)]
        return self.scalar(_SCALARS[kind])

    def tensor_entry(self) -> _TensorEntry:
        name = self.string()
        sizes = [self.scalar("Q") for _ in range(self.scalar("I"))]
        return _TensorEntry(name, tuple(reversed(sizes)), self.scalar("I"), self.scalar("Q"))


@dataclass(frozen=True)
class _TensorEntry:
    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int

    def reader(self, content: Bytes, start: int) -> Callable[[], Floats]:
        """Return a function that reads the tensor; ``start`` is where the tensors of the file begin."""
        if self.kind not in _FORMATS:
            known = ", ".join(f"{form.name}" for form in _FORMATS.values())
            raise ValueError(
                f"the tensor {self.name!r} has the ggml type {self.kind}, which is not supported: {known} are"
            )
        form = _FORMATS[self.kind]
        blocks = int(np.prod(self.shape)) // form.values
        begin = start + self.offset

        def read() -> Floats:
            part = content[begin : begin + blocks * form.bytes].reshape(blocks, form.bytes)
            return form.dequantised(np.asarray(part)).reshape(self.shape)

        return read


@dataclass(frozen=True)
class _Format:
    """A ggml type: blocks of values in a fixed number of bytes."""

    name: str
    values: int
    bytes: int
    dequantised: Callable[[Bytes], Floats]
    """Function of the blocks (blocks, bytes) to their values (blocks, values)."""


def _halves(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view(np.float16).astype(np.float32)


def _signed(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view(np.int8).astype(np.float32)


def _nibbles(blocks: Bytes) -> Floats:
    return np.concatenate([blocks & 15, blocks >> 4], 1).astype(np.float32)


def _q5_nibbles(high: Bytes, low: Bytes) -> Floats:
    """Join the fifth bits (4 bytes) with the lower four bits (16 bytes) of 32 values."""
    fifth = np.unpackbits(high, axis=1, bitorder="little").astype(np.float32)
    return _nibbles(low) + 16 * fifth


def _q6_k(blocks: Bytes) -> Floats:
    """Dequantise Q6_K: 256 values in 16 groups with a scale each; four low bits and two high bits apart."""
    low, high = blocks[:, :128].reshape(-1, 2, 64), blocks[:, 128:192].reshape(-1, 2, 32)
    scales, factor = _signed(blocks[:, 192:208]), _halves(blocks[:, 208:210])
    lows = np.stack([low[..., :32] & 15, low[..., 32:] & 15, low[..., :32] >> 4, low[..., 32:] >> 4], 2)
    highs = np.stack([(high >> shift) & 3 for shift in (0, 2, 4, 6)], 2)
    values = (lows | (highs << 4)).astype(np.float32).reshape(-1, 16, 16) - 32
    return (values * scales[:, :, None]).reshape(-1, 256) * factor


_FORMATS: dict[int, _Format] = {
    0: _Format("F32", 1, 4, lambda blocks: np.ascontiguousarray(blocks).view(np.float32)),
    1: _Format("F16", 1, 2, _halves),
    2: _Format("Q4_0", 32, 18, lambda b: _halves(b[:, :2]) * (_nibbles(b[:, 2:]) - 8)),
    3: _Format("Q4_1", 32, 20, lambda b: _halves(b[:, :2]) * _nibbles(b[:, 4:]) + _halves(b[:, 2:4])),
    6: _Format("Q5_0", 32, 22, lambda b: _halves(b[:, :2]) * (_q5_nibbles(b[:, 2:6], b[:, 6:]) - 16)),
    7: _Format(
        "Q5_1", 32, 24, lambda b: _halves(b[:, :2]) * _q5_nibbles(b[:, 4:8], b[:, 8:]) + _halves(b[:, 2:4])
    ),
    8: _Format("Q8_0", 32, 34, lambda b: _halves(b[:, :2]) * _signed(b[:, 2:])),
    14: _Format("Q6_K", 256, 210, _q6_k),
}


def _hugging_face_name(name: str) -> str | None:
    parts = name.split(".")
    if parts[0] in _TOP_NAMES:
        return f"{_TOP_NAMES[parts[0]]}.weight"
    if parts[0] == "blk" and parts[2] in _NAMES:
        return f"model.layers.{parts[1]}.{_NAMES[parts[2]]}.{parts[3]}"
    return None  # factors of the rotary embedding and the like


def _unpermuted(config: ModelConfig, name: str, values: Floats) -> Floats:
    """Undo the order of the rows of queries and keys in GGUF, where halves of a head are interleaved."""
    heads = {"attn_q": config.heads, "attn_k": config.key_value_heads}.get(name.split(".")[-2])
    if heads is None:
        return values
    return values.reshape(heads, config.head_size // 2, 2, -1).swapaxes(1, 2).reshape(values.shape)
