"""Corrects the requirements in a wheel whose versions end with a dot, which uv does not read (gym 0.21.0 has such)."""

from __future__ import annotations

import base64
import hashlib
import re
import zipfile
from pathlib import Path

_LAST_DOT = re.compile(r"(?<=\d)\.(?=[\s,;)]|$)")


def correct_wheel(wheel: Path, target: Path) -> None:
    """Write a copy of a wheel with ``>=3`` for ``>=3.`` in its requirements."""
    changed: dict[str, str] = {}
    with zipfile.ZipFile(wheel) as given, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as corrected:
        for item in given.infolist():
            content = given.read(item)
            if item.filename.endswith(".dist-info/METADATA"):
                content = _corrected(content.decode()).encode()
                changed[item.filename] = f"{item.filename},sha256={_digest(content)},{len(content)}"
            elif item.filename.endswith(".dist-info/RECORD"):  # the last file of a wheel
                lines = content.decode().splitlines()
                content = "".join(f"{changed.get(one.split(',')[0], one)}\n" for one in lines).encode()
            corrected.writestr(item, content)


def _corrected(metadata: str) -> str:
    lines = metadata.split("\n")
    return "\n".join(_LAST_DOT.sub("", one) if one.startswith("Requires-Dist:") else one for one in lines)


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
