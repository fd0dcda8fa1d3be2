"""``envweave info``: what one environment takes and gives."""

from __future__ import annotations

import inspect
import json

import pytest

from envweave_gym.cli import main
from envweave_gym.cli.info import card_named
from envweave_gym.envs.toy.lineworld import LineWorldEnv
from envweave_gym.registry.catalog import cards


def test_info_of_a_gymnasium_id(capsys: pytest.CaptureFixture[str]):
    assert main(["info", "envweave/LineWorld-v0", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["id"] == "envweave/LineWorld-v0"
    assert document["kinds"] == ["gym"]
    assert document["agents"] == {
        "agent": {"observation": "Box(0.0, 1.0, (2,), float32)", "action": "Discrete(2)"}
    }
    assert document["kwargs"] == {
        name: parameter.default for name, parameter in inspect.signature(LineWorldEnv).parameters.items()
    }
    assert document["wire_kwargs"] == ["length", "slip"]
    assert document["max_steps"] == 40
    assert document["doc"] == inspect.getdoc(LineWorldEnv)
    assert document["extra"] is None


def test_info_for_people(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["info", "envweave/Counter"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "envweave/Counter-v0"
    assert "arguments          target=10, render_mode=None" in lines
    assert "step limit         100" in lines
    assert max(map(len, lines)) <= 60


def test_info_of_a_game(capsys: pytest.CaptureFixture[str]):
    assert main(["info", "envweave/KuhnPoker-v0", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["kinds"] == ["aec", "parallel"]
    assert list(document["agents"]) == ["player_0", "player_1"]
    assert document["agents"]["player_0"]["action"] == "Discrete(2)"
    assert document["max_steps"] is None


def test_info_of_a_foreign_id(capsys: pytest.CaptureFixture[str]):
    assert main(["info", "CartPole-v1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["id"], document["kinds"], document["max_steps"]) == ("CartPole-v1", ["gym"], 500)
    assert document["agents"]["agent"]["action"] == "Discrete(2)"


@pytest.mark.parametrize("name", ["envweave/Echo", "envweave/Echo_v0", "envweave_gym:envweave/Echo_v0"])
def test_info_knows_every_spelling_that_make_knows(name: str, capsys: pytest.CaptureFixture[str]):
    assert main(["info", name, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["id"], document["max_steps"]) == ("envweave/Echo-v0", 100)
    assert card_named(name) is cards()["envweave/Echo-v0"]


def test_info_of_an_id_over_data_needs_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ENVWEAVE_DATA", "/nowhere")
    assert main(["info", "envweave/GSM8KMCQ-v0", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["kwargs"]["dataset"] == "openai/gsm8k"
    assert document["agents"]["agent"]["action"] == "Discrete(4)"
