"""Folders of the user: where the variables name them, and where they do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from envweave_gym.os_support.xdg_folders import cache_folder, cache_home, configuration_folder, state_folder


def test_variables_name_the_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for name in ("CACHE", "CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    assert cache_home() == tmp_path / "CACHE"
    assert cache_folder() == tmp_path / "CACHE" / "envweave"
    assert configuration_folder() == tmp_path / "CONFIG" / "envweave"
    assert state_folder() == tmp_path / "STATE" / "envweave"


@pytest.mark.parametrize("given", [None, "", "relative/path", "~/other"])
def test_without_an_absolute_path_they_are_in_the_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str | None
):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("CACHE", "CONFIG", "STATE"):
        if given is None:
            monkeypatch.delenv(f"XDG_{name}_HOME", raising=False)
        else:
            monkeypatch.setenv(f"XDG_{name}_HOME", given)
    assert cache_folder() == tmp_path / ".cache" / "envweave"
    assert configuration_folder() == tmp_path / ".config" / "envweave"
    assert state_folder() == tmp_path / ".local" / "state" / "envweave"
