"""The source of a Space is installed by uv in a virtual environment of its own, with consent, and played."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openenv", reason="OpenEnv is not installed: run make trainers")

import envweave_gym as ew
from envweave_gym.compat.repl import REPLEnv
from envweave_gym.core.faults import NotAvailable
from envweave_gym.suites.uv_commands import uv_program

pytestmark = pytest.mark.trainers
PROJECT = Path(__file__).parents[1] / "support" / "openenv_project"
NAME = "openenv://hf/owner/my-env"


def test_a_project_is_installed_with_consent_and_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        uv_program("this test")
    except NotAvailable:
        beside = PROJECT.parents[2] / ".venv" / "bin"  # of those who make this venv
        monkeypatch.setenv("PATH", str(beside), prepend=":")
    project = tmp_path / "project"
    shutil.copytree(PROJECT, project)
    monkeypatch.setenv("ENVWEAVE_SUITES", str(tmp_path / "suites"))
    monkeypatch.delenv("ENVWEAVE_INSTALL", raising=False)
    how: dict[str, Any] = {"backend": "venv", "project": str(project)}
    with pytest.raises(NotAvailable, match="install=True"):
        ew.make(NAME, **how)
    assert not list((tmp_path / "suites").glob("*/bin"))
    with ew.make(NAME, **how, install=True) as env:
        assert env.reset(seed=1)[0] == {"said": "ready"}
        assert env.step({"message": "☃"})[:2] == ({"said": "☃"}, 1.0)
    (project / "openenv.yaml").unlink()  # its script "server" names the application's module too
    with pytest.raises(NotAvailable, match="my-env has another environment than that of REPLEnv"):
        REPLEnv.from_hub("owner/my-env", use_docker=False, project_path=str(project), install=True).reset()
