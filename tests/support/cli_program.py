"""The program as a user starts it, for the tests of its commands."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).with_name("envweave")


def run(*words: str, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """The installed program, as a user starts it, with output that goes to no terminal."""
    inherited = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return subprocess.run(
        [PROGRAM, *words],
        input=stdin,
        env={**inherited, **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def until(descriptor: int, text: bytes) -> bytes:
    seen = b""
    while not seen.endswith(text):
        seen += os.read(descriptor, 4096)
    return seen


def installed_plug_ins(tmp_path: Path) -> str:
    """A folder with two installed packages: one brings an ID whose module is missing, one cannot be read."""
    rows = [
        {"id": "demo/Robot-v0", "doc": "A robot.", "gym": "robot:Env", "extra": "arm", "requires": ["arm9"]}
    ]
    (tmp_path / "good_plug.py").write_text(f"CARDS = {rows!r}\n")
    (tmp_path / "bad_plug.py").write_text("raise RuntimeError('no\\nluck')\n")
    for name in ("good", "bad"):
        folder = tmp_path / f"{name}_plug-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-plug\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[envweave_gym.envs]\n{name} = {name}_plug:CARDS\n")
    return str(tmp_path)
