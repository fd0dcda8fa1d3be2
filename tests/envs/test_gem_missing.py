"""GEM without one of the modules that it imports is one error that says what to install."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import envweave_gym as ew
from envweave_gym.core.faults import MissingExtra


def test_gem_without_a_module_that_it_imports_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("gem", "gem.envs", "gem.envs.registration"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    envs = tmp_path / "gem" / "envs"
    envs.mkdir(parents=True)
    for folder in (envs.parent, envs):
        (folder / "__init__.py").touch()
    (envs / "registration.py").write_text("import toolkit_of_gem")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        with pytest.raises(MissingExtra, match=r"toolkit_of_gem for GEM.*pip install .*nltk"):
            ew.make("envweave/GEM-v0", gem_id="game:GuessTheNumber-v0")
    finally:
        for name in ("gem", "gem.envs"):
            sys.modules.pop(name, None)
