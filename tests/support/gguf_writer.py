"""A writer of small GGUF files in float32, for tests of the reader."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

_ALIGNMENT = 32


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def value(given: Any) -> bytes:
    if isinstance(given, str):
        return struct.pack("<I", 8) + string(given)
    if isinstance(given, bool):
        return struct.pack("<I?", 7, given)
    if isinstance(given, int):
        return struct.pack("<II", 4, given)
    if isinstance(given, float):
        return struct.pack("<If", 6, given)
    items = [value(item) for item in given]
    return (
        struct.pack("<I", 9)
        + items[0][:4]
        + struct.pack("<Q", len(items))
        + b"".join(item[4:] for item in items)
    )


def write_gguf(
    path: Path, metadata: dict[str, Any], tensors: dict[str, tuple[tuple[int, ...], int, bytes]]
) -> None:
    """Write tensors, each a shape, a ggml type and its bytes."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(string(key) + value(given) for key, given in metadata.items())
    data = b""
    for name, (shape, kind, content) in tensors.items():
        sizes = struct.pack(f"<{len(shape)}Q", *reversed(shape))
        head += string(name) + struct.pack("<I", len(shape)) + sizes + struct.pack("<IQ", kind, len(data))
        data += content + b"\0" * (-len(content) % _ALIGNMENT)
    path.write_bytes(head + b"\0" * (-len(head) % _ALIGNMENT) + data)


def floats(array: Any) -> tuple[tuple[int, ...], int, bytes]:
    given = np.asarray(array, np.float32)
    return given.shape, 0, given.tobytes()
