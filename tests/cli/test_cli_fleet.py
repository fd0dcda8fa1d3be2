"""``envweave fleet``: servers that are kept up together, in the foreground and in the background."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import psutil
import pytest
from cli_program import run
from engines import client
from servers import runs, until

import envweave_gym as ew
from envweave_gym.cli import _parser, main
from envweave_gym.cli.fleet import _clean, _options
from envweave_gym.cli.fleet_files import FleetFile, find, log_file, own_token_file
from envweave_gym.os_support.process_identity import began, processes_seen
from envweave_gym.os_support.token_file import token_in

__all__ = ["client"]
COUNTER = "envweave/Counter-v0"
Envweave = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def fleet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Envweave]:
    """``envweave fleet …`` with a state of its own; what is still up behind the test is ended."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        code = main(["fleet", *words])
        return subprocess.CompletedProcess(words, code, *capsys.readouterr())

    yield command
    for known in json.loads(command("status", "--json").stdout)["fleets"]:
        command("down", "--name", known["name"])


def files(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "envweave" / "fleets").iterdir())


def keeper(tmp_path: Path, name: str = "default") -> psutil.Process:
    """The process that keeps a fleet up."""
    return psutil.Process(json.loads((tmp_path / f"envweave/fleets/{name}.json").read_text())["pid"])


def test_a_fleet_in_the_background_is_up_when_the_command_returns(fleet: Envweave, tmp_path: Path):
    done = fleet("up", COUNTER, "--backend=subprocess", "--replicas=2", "--detach", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    reported = json.loads(done.stdout)
    assert (reported["name"], len(reported["urls"])) == ("default", 2)
    env = eval(reported["python"], {"gymnasium": gym})
    assert env.reset(seed=1)[0].keys() == {"count"}
    servers = keeper(tmp_path).children(recursive=True)
    (known,) = json.loads(fleet("status", "--json").stdout)["fleets"]
    assert (known["state"], known["name"], known["backend"]) == ("up", "default", "subprocess")
    assert [one["url"] for one in known["replicas"]] == reported["urls"]
    assert {(one["state"], one["restarts"]) for one in known["replicas"]} == {("healthy", 0)}
    assert sorted(one["sessions"] for one in known["replicas"]) == [0, 1]
    env.close()
    down = fleet("down")
    assert (down.returncode, down.stdout) == (0, "fleet default is down: 2 replicas have ended\n")
    assert files(tmp_path) == []
    until(lambda: not any(map(runs, servers)), 30)


def test_its_token_is_in_a_file_for_its_owner_alone(fleet: Envweave, tmp_path: Path):
    done = fleet("up", "--backend=subprocess", "--detach", "--json")
    reported = json.loads(done.stdout)
    file = Path(reported["token_file"])
    folder = tmp_path / "envweave" / "fleets"
    assert file == folder / "default.token"
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder, file, folder / "default.json")]
    assert modes == [0o700, 0o600, 0o600]
    token = file.read_text().strip()
    assert token not in done.stdout
    assert token not in (folder / "default.json").read_text()
    url = reported["urls"][0]
    gym.make(COUNTER, backend=url, token=f"file:{file}").close()
    with pytest.raises(ew.NotAvailable, match="token"):
        gym.make(COUNTER, backend=url)


def test_a_token_file_of_ones_own_is_used_and_kept(fleet: Envweave, tmp_path: Path):
    file = tmp_path / "token"
    up = ("up", "--backend=subprocess", "--detach", "--json", f"--token-file={file}")
    url = json.loads(fleet(*up).stdout)["urls"][0]
    token = file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert gym.make(COUNTER, backend=url, token=f"file:{file}").reset(seed=1)
    fleet("down")
    fleet(*up)
    assert file.read_text() == token


def test_the_table_has_a_row_for_each_replica(fleet: Envweave):
    up = fleet("up", "--backend=subprocess", "--replicas=2", "--name=mine", "--detach")
    first, *urls, _, use, ending = up.stdout.splitlines()
    assert first == "fleet mine is up: 2 replicas of backend subprocess"
    assert use.startswith(f"gymnasium.make('envweave/Counter-v0', backend=['{urls[0]}', '{urls[1]}'], token=")
    assert ending == "'envweave fleet down --name mine' ends it"
    done = fleet("status", "--name=mine")
    head, *rows = (line.split() for line in done.stdout.splitlines())
    assert head == ["FLEET", "STATE", "SESSIONS", "RESTARTS", "URL"]
    assert rows == [["mine", "healthy", "0", "0", url] for url in urls]


def test_one_that_was_replaced_is_counted(fleet: Envweave, tmp_path: Path):
    fleet("up", "--backend=subprocess", "--replicas=2", "--detach")
    server = keeper(tmp_path).children()[0]
    os.killpg(server.pid, signal.SIGKILL)

    def restarts() -> list[int]:
        (known,) = json.loads(fleet("status", "--json").stdout)["fleets"]
        return sorted(one["restarts"] for one in known["replicas"])

    until(lambda: restarts() == [0, 1], 30)
    until(lambda: fleet("status").returncode == 0, 30)


def test_a_keeper_that_was_killed_is_said_and_forgotten(fleet: Envweave, tmp_path: Path):
    for name in ("one", "two"):
        fleet("up", "--backend=subprocess", "--detach", f"--name={name}")
        process = keeper(tmp_path, name)
        process.kill()
        until(lambda process=process: not runs(process), 30)
    done = fleet("status", "--name=one")
    assert done.returncode == 1
    assert "was killed; removed: nothing was left behind" in " ".join(done.stdout.split())
    down = fleet("down", "--name=two")
    assert down.returncode == 0
    assert down.stdout.startswith("fleet two is gone, as process ")
    assert files(tmp_path) == []
    assert fleet("status").stdout == "no fleet is up; 'envweave fleet up' starts one\n"


def test_a_name_whose_owner_was_killed_is_free_again(fleet: Envweave, tmp_path: Path):
    fleet("up", "--backend=subprocess", "--detach")
    process = keeper(tmp_path)
    process.kill()
    until(lambda: not runs(process), 30)
    again = fleet("up", "--backend=subprocess", "--detach")
    assert again.returncode == 0
    assert fleet("status").returncode == 0
    taken = fleet("up", "--backend=subprocess")
    assert (taken.returncode, taken.stdout) == (1, "")
    assert taken.stderr == (
        "envweave: a fleet 'default' is up already; end it with 'envweave fleet down --name default', "
        "or choose another --name\n"
    )


def test_of_two_that_want_a_name_one_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    known = FleetFile(name="x", backend="docker", token_file="/x")
    known.claim()
    with pytest.raises(ew.NotAvailable, match="a fleet 'x' is up already"):
        FleetFile(name="x", backend="ray", token_file="/x").claim()
    assert files(tmp_path) == ["x.json"]
    assert find("x") == known
    known.remove()
    assert files(tmp_path) == []


def test_the_loser_of_a_name_leaves_the_files_of_the_winner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    token = str(own_token_file("x"))
    gone = FleetFile(name="x", backend="subprocess", token_file=token, began="1")
    winner = FleetFile(name="x", backend="subprocess", token_file=token)
    winner.claim()
    assert len(token_in(Path(token))) > 30
    log_file("x").touch()
    _clean(gone)
    assert not gone.remove()
    assert files(tmp_path) == ["x.json", "x.log", "x.token"]
    assert find("x") == winner
    assert winner.remove()
    assert files(tmp_path) == ["x.log"]


def test_a_token_file_that_is_gone_stays_so_and_a_bad_file_hides_no_fleet(fleet: Envweave, tmp_path: Path):
    fleet("up", "--backend=subprocess", "--detach")
    token = tmp_path / "envweave" / "fleets" / "default.token"
    kept, bad = token.read_text(), token.with_name("bad.json")
    token.unlink()
    done = fleet("status", "--json")
    (known,) = json.loads(done.stdout)["fleets"]
    assert (done.returncode, known["state"], known["replicas"][0]["sessions"]) == (0, "up", None)
    assert done.stderr.startswith(
        f"envweave: warning: fleet default: --token-file {token} cannot be used: No"
    )
    assert not token.exists()
    token.write_text(kept)
    for wrong in ("{", '{"name": "x", "backend": "y", "token_file": "z", "urls": ["u"], "restarts": [1, 2]}'):
        bad.write_text(wrong)
        done = fleet("status")
        assert (done.returncode, done.stdout.count("healthy")) == (1, 1)
        assert done.stderr.startswith(f"envweave: {bad} cannot be read: ")
        assert len(json.loads(fleet("status", "--json").stdout)["unreadable"]) == 1
    bad.unlink()


@pytest.mark.parametrize("backend", ["docker", "kubernetes"])
def test_the_image_of_an_id_is_found_wherever_there_are_images(backend: str):
    def options(*words: str) -> dict[str, Any]:
        return _options(_parser().parse_args(["fleet", "up", *words]))

    line = ("envweave/LineWorld-v0", f"--backend={backend}")
    assert options(*line) == {"image": "envweave-lineworld"}
    assert options(*line, "--image=mine") == options(*line, "--option=image=mine") == {"image": "mine"}
    assert options("envweave/LineWorld-v0", "--backend=ray") == {}
    assert options("--option=pids=9", "--image=mine", "--docker-sock") == {
        "image": "mine",
        "pids": 9,
        "docker_sock": True,
    }
    assert options("--image=mine") == {"image": "mine"}


def test_a_folder_that_cannot_be_made_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert main(["fleet", "status"]) == 1
    folder = tmp_path / "file" / "envweave" / "fleets"
    [line] = capsys.readouterr().err.splitlines()
    assert all(word in line for word in (str(folder), "Not a directory", "XDG_STATE_HOME"))


def test_a_process_with_the_number_of_a_dead_keeper_is_not_taken_for_it():
    known = {"name": "x", "backend": "docker", "token_file": "/x", "pid": os.getpid()}
    assert FleetFile(**known).has_keeper()
    assert not FleetFile(**known, began="1").has_keeper()
    assert not FleetFile(**known, boot="another").has_keeper()
    assert not FleetFile(**{**known, "pid": 1 << 30}, began="").has_keeper()
    child = subprocess.Popen(["true"])
    until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE, 30)
    assert not FleetFile(
        **{**known, "pid": child.pid}, began=began(child.pid), boot=processes_seen()
    ).has_keeper()
    child.wait()


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["down"], 2, "there is no fleet 'default'; 'envweave fleet status' lists those there are"),
        (["status", "--name=x"], 2, "there is no fleet 'x'"),
        (["status", "--name=../x"], 2, "--name '../x' is no name; give letters, digits"),
        (["up", "--backend=magic"], 2, "Fleet('magic'): there is no such provider"),
        (["up", "--backend=magic", "--detach"], 2, "Fleet('magic'): there is no such provider"),
        (["up", "--backend=subprocess", "--memory=1g"], 2, "takes no option 'memory'"),
        (["up", "--backend=subprocess", "--option=x=1"], 2, "takes no option 'x'"),
        (
            ["up", "--backend=subprocess", "--option=replicas=3"],
            2,
            "--option replicas=… is no option of a backend; give --replicas N",
        ),
        (["up", "--backend=subprocess", "--replicas=0"], 2, "replicas=0 is no number of replicas"),
        (
            ["up", "--backend=subprocess", "--token-file=/nowhere/x"],
            2,
            "--token-file /nowhere/x cannot be used",
        ),
        (
            ["up", "--backend=subprocess", "--token-file=/dev/null"],
            2,
            "--token-file /dev/null holds no token",
        ),
        (
            ["up", "--backend=subprocess", "--token-file=/dev/zero"],
            2,
            "--token-file /dev/zero holds no token; give at most 4096 characters",
        ),
        (["up", "--image=envweave-none"], 1, "the image envweave-none is not on this machine"),
        (["up", "--backend=subprocess", "nope/None-v0", "--detach"], 1, "ended before its server answered"),
        ([], 2, "see envweave fleet --help"),
    ],
)
def test_a_failing_command_prints_one_line(
    words: list[str], code: int, sentence: str, fleet: Envweave, tmp_path: Path, request: Any
):
    if "image" in str(words):
        request.getfixturevalue("client")
    done = fleet(*words)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.splitlines()[-1].startswith("envweave: ")
    assert sentence in done.stderr
    assert not (tmp_path / "envweave").exists() or files(tmp_path) == []


def test_containers_of_a_keeper_that_was_killed_are_swept(tmp_path: Path, client: Any):
    def fleet(*words: str) -> subprocess.CompletedProcess[str]:
        return run("fleet", *words, XDG_STATE_HOME=str(tmp_path))

    done = fleet("up", COUNTER, "--replicas=2", "--memory=400m", "--option=pids=100", "--detach", "--json")
    assert done.stderr == ""
    reported = json.loads(done.stdout)
    token = {"token": f"file:{reported['token_file']}"}
    env = gym.make(COUNTER, backend=reported["urls"], **token)
    env.reset(seed=1)
    env.close()
    with pytest.raises(ew.UnknownEnvironment):
        gym.make("envweave/LineWorld-v0", backend=reported["urls"], **token)
    process = keeper(tmp_path)
    mine = of(client, process.pid)
    given = [one.attrs["HostConfig"] for one in mine]
    assert [(one["Memory"], one["PidsLimit"]) for one in given] == [(400 << 20, 100)] * 2
    process.kill()
    until(lambda: not runs(process), 30)
    (known,) = json.loads(fleet("status", "--json").stdout)["fleets"]
    assert (known["state"], known["replicas"]) == ("gone", [])
    until(lambda: not of(client, process.pid))  # whoever was first to sweep them: all who start one do
    assert files(tmp_path) == []


def of(client: Any, pid: int) -> list[Any]:
    """The containers of a process."""
    there = client.containers.list(all=True, filters={"label": "envweave.owner"}, ignore_removed=True)
    return [one for one in there if one.labels["envweave.owner"].partition("-")[0] == str(pid)]
