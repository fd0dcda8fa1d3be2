"""``envweave export verifiers``: the package that is written, and what is refused. It runs in tests/trainers."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pettingzoo import ParallelEnv

import envweave_gym
from envweave_gym import Unicode
from envweave_gym.cli import main
from envweave_gym.core.faults import InvalidArgument, NotAvailable
from envweave_gym.integrations.verifiers_export import export


class Named(ParallelEnv[str, Any, Any]):
    """A game whose agents have names that its maker chooses."""

    metadata = {"name": "named"}

    def __init__(self, agents: list[str]) -> None:
        self.possible_agents = self.agents = agents

    def observation_space(self, agent: str) -> Any:
        return Unicode(9)

    action_space = observation_space


@pytest.fixture
def local_game(registries: None) -> str:
    envweave_gym.register("local://named", factory=Named)
    return "local://named"


def test_the_package_has_a_role_for_each_agent(tmp_path: Path):
    folder = export("envweave/KuhnPoker-v0", {"max_cycles": 9}, out=tmp_path / "kuhn")
    module = (folder / "kuhnpoker_v0.py").read_text()
    names = {node.name for node in ast.parse(module).body if isinstance(node, ast.ClassDef)}
    assert names == {"ExportedTaskset", "ExportedEnvConfig", "ExportedEnv"}
    assert "player_0: vf.AgentConfig" in module
    assert "{'max_cycles': 9}" in module or '{"max_cycles": 9}' in module
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["name"] == "kuhnpoker-v0"
    assert any(one.startswith("verifiers>=0.4") for one in project["project"]["dependencies"])


def test_the_command_writes_it_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    words = ["export", "verifiers", "envweave/Counter-v0", "--kwarg", "target=3", "--name", "three"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert str(tmp_path / "three") in said
    readme = (tmp_path / "three" / "README.md").read_text()
    assert "vf-eval three " in readme
    assert "envweave-gym" in said
    assert "pip install PATH_OR_URL_OF_ENVWEAVE_GYM" in readme
    assert "{'target': 3}" in (tmp_path / "three" / "three.py").read_text()
    assert main(words) == 2  # it exists already
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    "agent", ["class", "None", "from", "taskset", "max_concurrent_agents", "_x", "1st", ""]
)
def test_agents_that_cannot_be_roles_are_refused(local_game: str, tmp_path: Path, agent: str):
    with pytest.raises(InvalidArgument, match="cannot be the name of a role"):
        export(local_game, {"agents": [agent, "other"]}, out=tmp_path / "x", name="some-name")
    assert list(tmp_path.iterdir()) == []


def test_two_agents_that_would_be_one_role_are_refused(local_game: str, tmp_path: Path):
    with pytest.raises(InvalidArgument, match="cannot be the name of a role"):
        export(local_game, {"agents": ["a-b", "a_b"]}, out=tmp_path / "x", name="some-name")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"kwargs": {"target": float("inf")}}, "not JSON"),
        ({"name": "Großes"}, "not a name"),
        ({"name": "class"}, "not a name"),
        ({"name": "../x"}, "not a name"),
        ({"name": "json"}, "hide the module json"),
        ({"name": "random"}, "hide"),
        ({"name": "verifiers"}, "hide"),
        ({"name": "envweave-gym"}, "hide the module envweave_gym"),
        ({"name": "numpy"}, "hide"),
        ({"name": "psutil"}, "hide"),
        ({"max_turns": 0}, "max_turns"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path: Path, changes: dict[str, Any], word: str):
    with pytest.raises(InvalidArgument, match=word):
        export("envweave/Counter-v0", **{"out": tmp_path / "x", **changes})
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_no_half_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(NotAvailable, match="No space left"):
        export("envweave/Counter-v0", out=tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_a_name_with_quotes_stays_text(registries: None, tmp_path: Path):
    name = 'local://"""\nimport os\n'
    envweave_gym.register(name, factory=lambda agents: Named(agents))
    folder = export(name, {"agents": ["a", "b"]}, out=tmp_path / "x", name="quoted")
    tree = ast.parse((folder / "quoted.py").read_text())
    imported = [node for node in tree.body if isinstance(node, ast.Import)]
    assert [alias.name for node in imported for alias in node.names] == ["verifiers.v1"]
