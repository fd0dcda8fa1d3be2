"""``envweave play``: one episode of one player."""

from __future__ import annotations

import os
import pty
import subprocess
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from cli_program import PROGRAM, run, typed, until
from gymnasium.spaces import Box, Dict, Discrete, Tuple

import envweave_gym
from envweave_gym import Unicode
from envweave_gym.cli import main
from envweave_gym.cli.play import as_text, event_line, hint
from envweave_gym.core.jsonable import jsonable
from envweave_gym.core.spaces import Chat
from envweave_gym.episode.stream import UNNUMBERED, Event, EventKind


def test_play_counter_to_its_target():
    done = run(
        "play", "envweave/Counter-v0", "--seed", "46", stdin='{"delta": 5}\n{"delta": 3}\n{"delta": 2}\n'
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert lines[1].startswith("seed 46; an action is JSON like {")
    assert lines[2:] == [
        "0 of 10",
        'agent> {"delta": 5}',
        "5 of 10",
        'agent> {"delta": 3}',
        "8 of 10",
        'agent> {"delta": 2}',
        "reward: 1",
        "10 of 10",
        "total reward: 1",
        "verdict: terminated (3 steps)",
    ]


def test_junk_is_refused_in_one_line_and_asked_again():
    done = run("play", "envweave/Counter-v0", "--seed", "46", stdin='what?\n{"delta": 99}\n{"delta": 10}\n')
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert [line.partition(":")[0] for line in lines[2:]] == [
        "0 of 10",
        "agent> what?",
        "not an action",
        'agent> {"delta"',
        "not an action",
        'agent> {"delta"',
        "reward",
        "10 of 10",
        "total reward",
        "verdict",
    ]


def test_play_echo_says_a_text_once_and_pays_for_it():
    done = run("play", "envweave/Echo-v0", stdin="Hello, World!\n\nq\nnever read\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[2:] == [
        "user: Echo environment ready!",
        "agent> Hello, World!",
        "user: Hello, World!",
        "reward: 1.3",
        "agent> ",
        "user: ",
        "agent> q",
        "total reward: 1.3",
        "verdict: not played to the end (2 steps)",
    ]


SEVERAL = ['"""', "one", "q", "", '"""', "```text", "two", "```"]


def test_a_text_may_have_several_lines():
    done = run("play", "envweave/Echo-v0", stdin="\n".join([*SEVERAL, "q", ""]))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert 'several lines between two lines """' in lines[1]
    said = done.stdout.partition("agent> ")[2]
    assert "user: one\nq\n\nreward: 0.6\n" in said
    assert "user: ```text\ntwo\n```\nreward: 1.5\n" in said
    assert lines[-1] == "verdict: not played to the end (2 steps)"


def test_several_lines_are_typed_at_a_terminal():
    ours, theirs = pty.openpty()
    words = [PROGRAM, "play", "envweave/Echo-v0", "--kwarg", "max_steps=1"]
    with subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=subprocess.STDOUT) as process:
        os.close(theirs)
        until(ours, b"agent> ")
        for line in (b'"""', b"one", b"two"):
            os.write(ours, line + b"\n")
            until(ours, b"...> ")
        os.write(ours, b'"""\n')
        seen = until(ours, b"(1 step)\r\n")
    os.close(ours)
    assert b"user: one\r\ntwo\r\n" in seen
    assert b"verdict: truncated (1 step)" in seen
    assert process.returncode == 0


def test_the_verdict_says_whether_it_was_a_success(monkeypatch: Any, capsys: pytest.CaptureFixture[str]):
    typed(monkeypatch, "#### 1/7")
    assert main(["play", "envweave/GSM8K-v0", "--kwarg", "dataset=synthetic"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("verdict: no success (1 step; correct 0, ")


def test_bytes_that_are_no_text_do_not_end_the_play():
    done = subprocess.run(
        [PROGRAM, "play", "envweave/Echo-v0"], input=b"\xff\xfe\n", capture_output=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.splitlines()[-2] == b"total reward: 0.2"


def test_play_lineworld_until_the_step_limit():
    words = ["play", "envweave/LineWorld-v0", "--kwarg", "slip=0", "--kwarg", "max_steps=3", "--seed", "5"]
    done = run(*words, stdin="0\n1\n0\n1\n", PYTHONIOENCODING="utf-8")
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert lines[1] == "seed 5; an action is 0 (left), 1 (right); q quits"
    pictures = [line for line in lines if set(line) == set("·@G")]
    assert [line.index("@") for line in pictures] == [
        place + pictures[0].index("@") for place in (0, -1, 0, -1)
    ]
    assert lines[-2:] == ["total reward: -0.03", "verdict: truncated (3 steps)"]


def test_a_terminal_that_lacks_the_characters_gets_replacements():
    done = run("play", "envweave/LineWorld-v0", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "?" in done.stdout.splitlines()[2]


def test_play_a_foreign_id_without_a_picture(monkeypatch: Any, capsys: pytest.CaptureFixture[str]):
    typed(monkeypatch, "0", "q")
    assert main(["play", "CartPole-v1", "--seed", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "CartPole-v1"
    assert lines[2].startswith("[ 0.0137, -0.023 ")
    assert lines[-2] == "total reward: 1"


def test_a_fault_is_shown_and_is_no_success(monkeypatch: Any, capsys: pytest.CaptureFixture[str]):
    envweave_gym.register("local://fragile", factory=Fragile)
    typed(monkeypatch, "0", "0")
    assert main(["play", "local://fragile", "--kwarg", "on_fault=truncate"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "fault (crash): RuntimeError: broken inside" in lines
    assert lines[-1].startswith("verdict: lost to a fault")
    typed(monkeypatch, "0", "0")
    assert main(["play", "local://fragile"]) == 1
    assert capsys.readouterr().err == "envweave: RuntimeError: broken inside\n"
    assert Fragile.open == 0


class Fragile(gym.Env[Any, Any]):
    """Breaks at the second step; counts how many of it are open."""

    open = 0
    observation_space = action_space = Discrete(2)

    def __init__(self) -> None:
        self.steps = 0
        Fragile.open += 1

    def reset(self, **kwargs: Any) -> tuple[int, dict[str, Any]]:
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps > 1:
            raise RuntimeError("broken\ninside")
        return 0, 0.0, False, False, {}

    def close(self) -> None:
        Fragile.open -= 1


# what to type, what to see


@pytest.mark.parametrize(
    ("space", "says"),
    [
        (Unicode(5), 'any text, of several lines between two lines """ or in a ``` fence'),
        (Discrete(3, start=-1), "an integer from -1 to 1"),
        (Dict({"a": Tuple([Discrete(1), Discrete(1)])}), 'JSON like {"a": [0, 0]}'),
    ],
)
def test_the_hint_says_what_to_type(space: Any, says: str):
    before = space.np_random.bit_generator.state
    assert hint(space) == says
    assert space.np_random.bit_generator.state == before


def test_the_hint_for_a_large_space_is_short():
    assert len(hint(Box(0, 255, (64, 64, 3), np.uint8))) < 100
    assert hint(Chat()).startswith("JSON like [")


def test_observations_are_written_for_people():
    observation = {"text": "one\ntwo", "place": np.array([0.5, 1.0]), "n": np.int64(3), "list": (1, None)}
    assert as_text(observation) == "text:\n  one\n  two\nplace: [0.5, 1. ]\nn: 3\nlist: [1, null]"


@pytest.mark.parametrize("reward", [0.5, float("nan"), float("-inf")])
def test_every_reward_is_recorded(reward: float):
    event = Event(UNNUMBERED, EventKind.REWARD, None, None, {"reward": jsonable(reward)})
    assert event_line(event, None) == f"reward: {reward}"
