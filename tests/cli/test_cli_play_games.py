"""``envweave play``: a game of players who share a keyboard."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from typing import Any

import pytest
from cli_program import PROGRAM, run, typed, until
from pettingzoo import ParallelEnv

import envweave_gym
from envweave_gym import Emitter, Unicode, message, reveal
from envweave_gym.cli import main


class Secrets(Emitter, ParallelEnv[str, Any, Any]):
    """Two agents with a secret each act at once; whoever says the other's secret wins."""

    metadata = {"name": "secrets", "render_modes": ["ansi"]}

    def __init__(self) -> None:
        self.possible_agents = ["ann", "bob"]
        self.agents: list[str] = []
        self.secrets = {"ann": "apple", "bob": "banana"}

    def observation_space(self, agent: str) -> Unicode:
        return Unicode(100)

    def action_space(self, agent: str) -> Unicode:
        return Unicode(100)

    def render(self) -> str:
        return "apple banana"

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.agents = list(self.possible_agents)
        self.emit(message("user", "Guess!"), reveal(("bob",), hint="red"))
        return {agent: f"yours is {secret}" for agent, secret in self.secrets.items()}, {"ann": {}, "bob": {}}

    def step(self, actions: dict[str, str]) -> Any:
        rewards = {"ann": float(actions["ann"] == "banana"), "bob": float(actions["bob"] == "apple")}
        over = any(rewards.values())
        if over:
            self.agents = []
            self.emit(reveal(("ann", "bob"), **self.secrets))
        observations = {agent: f"yours is still {secret}" for agent, secret in self.secrets.items()}
        return (
            observations,
            rewards,
            *({"ann": flag, "bob": flag} for flag in (over, False)),
            {"ann": {}, "bob": {}},
        )


@pytest.fixture
def secrets() -> str:
    envweave_gym.register("local://secrets", factory=Secrets)
    return "local://secrets"


def test_each_player_of_a_hot_seat_sees_only_what_is_theirs(
    secrets: str, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
):
    typed(monkeypatch, "pear", "plum", "banana", "cherry")
    assert main(["play", secrets, "--seed", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "user: Guess!",
        "yours is apple",
        "ann> pear",
        "user: Guess!",
        'reveal: {"hint": "red"}',
        "yours is banana",
        "bob> plum",
        'bob acts: "plum"',
        "yours is still apple",
        "ann> banana",
        'ann acts: "pear"',
        "yours is still banana",
        "bob> cherry",
        'ann acts: "banana"',
        'bob acts: "cherry"',
        'reveal: {"ann": "apple", "bob": "banana"}',
        "total reward of ann: 1",
        "total reward of bob: 0",
        "verdict: terminated (2 steps)",
    ]


def test_play_kuhn_poker_turn_by_turn():
    done = run("play", "envweave/KuhnPoker-v0", "--seed", "1", stdin="1\n2\n1\n")
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    asked = [line for line in lines if "> " in line]
    assert asked == ["player_0> 1", "player_1> 2", "player_1> 1"]
    dealt = [json.loads(line.removeprefix("reveal: ")) for line in lines if line.startswith("reveal: ")]
    assert [set(cards) for cards in dealt] == [{"card"}, {"card"}, {"player_0", "player_1"}]
    assert [dealt[0]["card"], dealt[1]["card"]] == [dealt[2]["player_0"], dealt[2]["player_1"]]
    assert "player_0 acts: 1" in lines[lines.index("player_0> 1") : lines.index("player_1> 2")]
    totals = [float(line.rpartition(" ")[2]) for line in lines[-3:-1]]
    assert sorted(totals) == [-2.0, 2.0]


def test_a_prompt_that_is_message_and_observation_is_shown_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    typed(monkeypatch, "q")
    assert main(["play", "envweave/CodeReview-v0", "--seed", "4"]) == 0
    out = capsys.readouterr().out
    assert out.count("```python") == 1
    assert "\nobservation: [" in out


def test_players_at_a_terminal_get_a_clean_screen_each():
    leader, follower = pty.openpty()
    words = [PROGRAM, "play", "envweave/KuhnPoker-v0", "--seed", "1"]
    with subprocess.Popen(words, stdin=follower, stdout=follower, stderr=follower) as process:
        os.close(follower)
        before = until(leader, b"player_0, it is your turn: press Enter ")
        os.write(leader, b"\n")
        seen = until(leader, b"player_0> ")
        os.write(leader, b"0\n")
        between = until(leader, b"player_1, it is your turn: press Enter ")
        os.write(leader, b"q\n")
        assert process.wait(30) == 0
        os.close(leader)
    assert b"reveal" not in before
    assert b'reveal: {"card": ' in seen
    assert between.endswith(b"\033[H" + b"player_1, it is your turn: press Enter ")
