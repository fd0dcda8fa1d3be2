"""The program ``envweave``: its commands, their exit codes, and one line for whatever goes wrong."""

from __future__ import annotations

import inspect
import io
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from pettingzoo import ParallelEnv

import envweave_gym
from envweave_gym import Chat, Emitter, Unicode, message, reveal
from envweave_gym.catalog import cards
from envweave_gym.cli import main
from envweave_gym.cli.doctor import Requirement, read_requirement, within
from envweave_gym.cli.play import as_text, hint
from envweave_gym.cli.tables import table
from envweave_gym.envs.lineworld import LineWorldEnv

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


# list


def test_list_shows_every_card_with_its_line():
    done = run("list")
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert lines[0].split()[:3] == ["ID", "KIND", "EXTRA"]
    assert len(lines) == 1 + len(cards())
    for card in cards().values():
        [line] = [line for line in lines if line.startswith(card.id + " ")]
        assert line.endswith(card.doc)


def test_list_as_json_is_one_document(capsys: pytest.CaptureFixture[str]):
    assert main(["list", "--json"]) == 0
    out, err = capsys.readouterr()
    rows = {row["id"]: row for row in json.loads(out)}
    assert err == ""
    assert set(rows) == set(cards())
    assert rows["envweave/LineWorld-v0"]["native_vector"] is True
    assert rows["envweave/Counter-v0"] == {
        "id": "envweave/Counter-v0",
        "kinds": ["gym"],
        "native_vector": False,
        "extra": None,
        "missing": [],
        "doc": cards()["envweave/Counter-v0"].doc,
    }


def test_bare_ids_for_completion_and_the_module_as_program():
    done = subprocess.run(
        [sys.executable, "-m", "envweave_gym", "list", "--ids"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == sorted(cards())


@pytest.mark.parametrize("width", [30, 60, 100])
def test_list_fits_the_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    ids = max(map(len, cards())) + len("  aec, parallel  -")
    assert max(map(len, lines)) <= max(width, ids)
    assert " ".join(" ".join(lines).split()).count("runners move at once along a line") == 1


def test_a_row_with_an_empty_last_cell_stays():
    assert table([("a", "b"), ("long", "")], 80) == "a     b\nlong"


# plug-ins


@pytest.fixture
def plug_ins(tmp_path: Path) -> str:
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


def test_list_shows_the_ids_of_plug_ins_and_what_they_lack(plug_ins: str):
    done = run("list", PYTHONPATH=plug_ins)
    [line] = [line for line in done.stdout.splitlines() if line.startswith("demo/Robot-v0")]
    assert line.split() == ["demo/Robot-v0", "gym", "arm", "(missing)", "A", "robot."]


def test_doctor_names_the_broken_plug_in_and_works_all_the_same(plug_ins: str):
    done = run("doctor", "--json", PYTHONPATH=plug_ins)
    found = {c["name"]: c for c in json.loads(done.stdout)["checks"] if c["part"] == "plug-in"}
    assert done.returncode == 0
    assert {name: check["status"] for name, check in found.items()} == {
        "bad": "broken",
        "envweave": "ok",
        "good": "ok",
    }
    assert "RuntimeError: no luck" in found["bad"]["detail"]
    assert found["bad"]["next_step"] == "repair or uninstall bad-plug 1.0"


# info


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
    assert document["doc"].startswith("A walker and a goal")
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


# play


def test_play_counter_to_its_target():
    done = run(
        "play", "envweave/Counter-v0", "--seed", "3", stdin='{"delta": 3}\n{"delta": 3}\n{"delta": 1}\n'
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert lines[1].startswith("seed 3; an action is JSON like {")
    assert lines[2:] == [
        "3 of 10",
        'agent> {"delta": 3}',
        "6 of 10",
        'agent> {"delta": 3}',
        "9 of 10",
        'agent> {"delta": 1}',
        "reward: 1",
        "10 of 10",
        "total reward: 1",
    ]


def test_junk_is_refused_in_one_line_and_asked_again():
    done = run("play", "envweave/Counter-v0", "--seed", "3", stdin='what?\n{"delta": 99}\n{"delta": 7}\n')
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert [line.partition(":")[0] for line in lines[2:]] == [
        "3 of 10",
        "agent> what?",
        "not an action",
        'agent> {"delta"',
        "not an action",
        'agent> {"delta"',
        "reward",
        "10 of 10",
        "total reward",
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
    ]


def test_bytes_that_are_no_text_do_not_end_the_play():
    done = subprocess.run(
        [PROGRAM, "play", "envweave/Echo-v0"], input=b"\xff\xfe\n", capture_output=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.splitlines()[-1] == b"total reward: 0.2"


def test_play_lineworld_until_the_step_limit():
    words = ["play", "envweave/LineWorld-v0", "--kwarg", "slip=0", "--kwarg", "max_steps=3", "--seed", "5"]
    done = run(*words, stdin="0\n1\n0\n1\n", PYTHONIOENCODING="utf-8")
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert lines[1] == "seed 5; an action is an integer from 0 to 1; q quits"
    pictures = [line for line in lines if set(line) == set("·@G")]
    assert [line.index("@") for line in pictures] == [
        place + pictures[0].index("@") for place in (0, -1, 0, -1)
    ]
    assert lines[-1] == "total reward: -0.03"


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
    assert lines[-1] == "total reward: 1"


def test_a_fault_is_shown_and_is_no_success(monkeypatch: Any, capsys: pytest.CaptureFixture[str]):
    envweave_gym.register("local://fragile", factory=Fragile)
    typed(monkeypatch, "0", "0")
    assert main(["play", "local://fragile", "--kwarg", "on_fault=truncate"]) == 1
    assert "fault (crash): RuntimeError: broken inside" in capsys.readouterr().out.splitlines()
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


# games


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
        self.tell(message("user", "Guess!"), reveal(("bob",), hint="red"))
        return {agent: f"yours is {secret}" for agent, secret in self.secrets.items()}, {"ann": {}, "bob": {}}

    def step(self, actions: dict[str, str]) -> Any:
        rewards = {"ann": float(actions["ann"] == "banana"), "bob": float(actions["bob"] == "apple")}
        over = any(rewards.values())
        if over:
            self.agents = []
            self.tell(reveal(("ann", "bob"), **self.secrets))
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
    totals = [float(line.rpartition(" ")[2]) for line in lines[-2:]]
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
        before = _until(leader, b"player_0, it is your turn: press Enter ")
        os.write(leader, b"\n")
        seen = _until(leader, b"player_0> ")
        os.write(leader, b"0\n")
        between = _until(leader, b"player_1, it is your turn: press Enter ")
        os.write(leader, b"q\n")
        assert process.wait(30) == 0
        os.close(leader)
    assert b"reveal" not in before
    assert b'reveal: {"card": ' in seen
    assert between.endswith(b"\033[H" + b"player_1, it is your turn: press Enter ")


def _until(descriptor: int, text: bytes) -> bytes:
    seen = b""
    while not seen.endswith(text):
        seen += os.read(descriptor, 4096)
    return seen


# what to type, what to see


@pytest.mark.parametrize(
    ("space", "says"),
    [
        (Unicode(5), "any text"),
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


# doctor


def test_doctor_says_what_works_and_what_to_install():
    done = run("doctor", DOCKER_HOST="unix:///nowhere.sock", PATH="/nowhere")
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert {line.split()[0] for line in lines} <= {"ok", "missing", "broken"}
    for package in ("python", "gymnasium", "pettingzoo", "numpy", "msgspec"):
        assert any(line.split()[:2] == ["ok", package] for line in lines), package
    assert any(line.startswith("missing  docker engine") and "set DOCKER_HOST" in line for line in lines)
    assert any(line.startswith("missing  chromium") for line in lines)


def test_doctor_as_json_covers_every_extra_and_the_machine(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    named = {(check["part"], check["name"]): check for check in report["checks"]}
    assert report["ok"] is True
    for extra in (
        "demo",
        "server",
        "train",
        "docker",
        "kubernetes",
        "ray",
        "swebench",
        "tinker",
        "mcp",
        "notebook",
    ):
        check = named["extra", extra]
        assert check["next_step"] == (
            "" if check["status"] == "ok" else f"pip install 'envweave-gym[{extra}]'"
        )
    assert ("extra", "all") not in named
    assert named["base", "numpy"]["detail"] == np.__version__
    assert "cores" in named["machine", "resources"]["detail"]
    assert "spawn" in named["machine", "start methods"]["detail"]
    assert named["plug-in", "envweave"]["status"] == "ok"


def test_doctor_imports_nothing_heavy():
    heavy = ("torch", "matplotlib", "pandas", "docker", "ray", "flask", "requests")
    code = (
        "import sys; from envweave_gym.cli import main; code = main(['doctor']);"
        f"sys.exit(code or sorted(set({heavy!r}) & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("reply", "status"), [("HTTP/1.1 200 OK\r\n\r\nOK", "ok"), ("SSH-2.0\r\n", "missing")]
)
def test_doctor_asks_the_engine(
    reply: str, status: str, tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
):
    path = str(tmp_path / "docker.sock")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(path)
        engine.listen()
        answering = threading.Thread(target=_answer, args=(engine, reply.encode()))
        answering.start()
        assert main(["doctor", "--json"]) == 0
        answering.join()
    [check] = [c for c in json.loads(capsys.readouterr().out)["checks"] if c["name"] == "docker engine"]
    assert check["status"] == status
    assert path in check["detail"]


def _answer(engine: socket.socket, reply: bytes) -> None:
    connection, _ = engine.accept()
    with connection:
        assert connection.recv(100).startswith(b"GET /_ping HTTP/1.")
        connection.sendall(reply)


def test_requirements_are_read_from_the_metadata():
    assert read_requirement("numpy>=1.26") == Requirement("numpy", (), ">=1.26", None)
    assert read_requirement('x-y [a,b] <2,>=1 ; extra == "z"') == Requirement(
        "x-y", ("a", "b"), "<2,>=1", "z"
    )


@pytest.mark.parametrize(
    ("found", "bounds", "fits"),
    [
        ("2.13.0+cpu", ">=2.2", True),
        ("1.1", "<2,>=1.1", True),
        ("1.1.0rc1", "<2,>=1.1", True),
        ("2.0", "<2,>=1.1", False),
        ("1.0.9", ">=1.1", False),
        ("3", ">=3.0", True),
        ("anything", "", True),
    ],
)
def test_versions_are_held_against_their_bounds(found: str, bounds: str, fits: bool):
    assert within(found, bounds) is fits


# what goes wrong


@pytest.mark.parametrize("command", ["play", "info"])
def test_an_unknown_id_is_one_line_with_the_nearest_names(command: str):
    done = run(command, "envweave/Conter-v0")
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("envweave: no environment is called 'envweave/Conter-v0'")
    assert "envweave/Counter-v0" in line


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "COMMAND"),
        (["serve"], "'serve'"),
        (["list", "--no"], "--no"),
        (["play"], "ID"),
        (["play", "envweave/Counter-v0", "--kwarg", "target"], "'target' does not look like name=value"),
        (
            ["play", "envweave/Counter-v0", "--kwarg", "traget=3"],
            "takes no argument 'traget' (did you mean 'target'?)",
        ),
        (["info", "envweave/Counter-v0", "--kwarg", "target=ten"], "target='ten' is not a count"),
        (["info", "envweave/Counter-v0", "--kwarg", "num_envs=2"], "leave num_envs out"),
        (["play", "envweave/Counter-v0", "--seed", "x"], "'x'"),
        (["play", "envweave/Counter-v0", "--seed", "-1"], "-1"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(words: list[str], says: str, capsys: pytest.CaptureFixture[str]):
    assert main(words) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("envweave: ")
    assert says in line


def test_debug_adds_the_traceback(capsys: pytest.CaptureFixture[str]):
    assert main(["play", "envweave/Counter-v0", "--kwarg", "nope=1", "--debug"]) == 2
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert err.splitlines()[-1].startswith("envweave: envweave/Counter-v0 takes no argument 'nope'")


def test_what_is_not_there_yet_is_a_failure_not_wrong_usage(capsys: pytest.CaptureFixture[str]):
    assert main(["info", "envweave/Counter-v0", "--kwarg", "backend=docker"]) == 1
    assert "needs the remote layer" in capsys.readouterr().err


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away_is_no_error(unbuffered: str):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [PROGRAM, "list"],
            stdout=writer,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            timeout=60,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_broken_pipe_inside_an_environment_is_told(capfd: pytest.CaptureFixture[str]):
    def factory() -> gym.Env[Any, Any]:
        raise BrokenPipeError("the worker is gone")

    envweave_gym.register("local://worker", factory=factory)
    assert main(["info", "local://worker"]) == 1
    assert capfd.readouterr().err == "envweave: BrokenPipeError: the worker is gone\n"


def test_ctrl_c_ends_quietly():
    words = [PROGRAM, "play", "envweave/LineWorld-v0"]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        _until(process.stdout.fileno(), b"agent> ")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_warnings_are_one_line_too(monkeypatch: Any, capsys: pytest.CaptureFixture[str]):
    done = subprocess.run(
        [sys.executable, "-c", _WARNING], input="q\n", capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "envweave: warning: mind the gap\n")


_WARNING = """
import sys, warnings, gymnasium, envweave_gym
from envweave_gym.cli import main
def factory():
    warnings.warn("\\033[33mmind\\nthe gap\\033[0m")
    return gymnasium.make("CartPole-v1")
envweave_gym.register("local://gap", factory=factory)
sys.exit(main(["play", "local://gap"]))
"""


def test_version_and_help(capsys: pytest.CaptureFixture[str]):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"envweave {envweave_gym.__version__}\n"
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: envweave ")
    assert all(command in out for command in ("list", "play", "info", "doctor"))
