"""The server as a program: how it is started, what it says then, and what it is given."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import requests
from absent import needs_command
from cli_program import PROGRAM
from servers import TOKEN, first_line_of, is_there, running_server, until

from envweave_gym.core.faults import InvalidArgument
from envweave_gym_server import create_app, run_server
from envweave_gym_server.__main__ import main
from envweave_gym_server.core import metrics

COUNTER = "envweave/Counter-v0"


@contextlib.contextmanager
def started(*words: str, **environ: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``envweave serve`` on a free port, and the line it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "ENVWEAVE_TOKEN"}
    command = [PROGRAM, "serve", "--port=0", *words]
    open_files = [int(word.partition("=")[2]) for word in words if word.startswith("--token-fd=")]
    with first_line_of(command, {**environment, **environ}, open_files) as reported:
        yield reported


def url_in(line: str) -> str:
    return re.findall(r"http://\S+", line)[0]


def health(url: str) -> int:
    return requests.get(url.partition("?")[0] + "health", timeout=10).status_code


def listed(url: str, token: str | None = None) -> int:
    address, _, query = url.partition("?")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return requests.get(f"{address}v1/envs?{query}", headers=headers, timeout=10).status_code


def test_a_session_that_ended_with_its_process_is_not_said_to_have_been_closed():
    with started(COUNTER, "--allow-anonymous") as (process, line):
        (worker,) = psutil.Process(process.pid).children()
        worker.kill()
        until(lambda: set(psutil.Process(process.pid).children()) - {worker}, 30)
        until(lambda: is_there(url_in(line) + "health"), 30)
        answer = requests.get(url_in(line) + "v1/sessions/mine", timeout=10)
    assert answer.status_code == 404
    why = "or ended with the process of this server that had it: nobody knows why"
    assert answer.json()["message"].endswith(f"it never was, was closed or was idle too long, {why}")


@pytest.mark.parametrize(
    ("name", "text", "killed"),
    [
        ("memory.events", "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n", 2),
        ("memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", 1),
        ("memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n", 0),
        ("nothing", "", 0),
    ],
)
def test_out_of_memory_kills_are_counted_by_both_versions_of_cgroups(
    name: str, text: str, killed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
    counts = [str(tmp_path / one) for one in ("memory.events", "memory/memory.oom_control")]
    monkeypatch.setattr(metrics, "_COUNTS", counts)
    assert metrics.oom_kills() == killed


def test_the_first_line_is_a_link_with_a_token_that_was_made_up():
    with started(COUNTER) as (_, first), started(COUNTER) as (_, second):
        assert first.startswith("envweave serves 1 environment at http://127.0.0.1:")
        assert url_in(first).partition("?token=")[2] != url_in(second).partition("?token=")[2]
        assert len(url_in(first).partition("?token=")[2]) >= 40
        assert listed(url_in(first)) == 200
        assert listed(url_in(first).partition("?")[0]) == 401


def test_a_token_file_is_written_for_its_owner_alone_and_read_the_next_time(tmp_path: Path):
    file = tmp_path / "token"
    with started(COUNTER, f"--token-file={file}") as (_, line):
        token = file.read_text().strip()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert token not in line
        assert listed(url_in(line), token) == 200
    with started(COUNTER, f"--token-file={file}") as (_, line):
        assert listed(url_in(line), token) == 200
        assert file.read_text().strip() == token


def test_a_token_comes_through_a_descriptor_whose_other_end_stays_open():
    reader, writer = os.pipe()
    os.write(writer, b"through-a-pipe\n")
    try:
        with started(COUNTER, f"--token-fd={reader}") as (_, line):
            assert "token" not in url_in(line)
            assert listed(url_in(line), "through-a-pipe") == 200
    finally:
        os.close(reader)
        os.close(writer)


def test_a_token_comes_from_the_environment_and_is_not_handed_on():
    with started(COUNTER, ENVWEAVE_TOKEN="from-the-environment") as (process, line):
        assert "from-the-environment" not in line
        assert listed(url_in(line), "from-the-environment") == 200
        assert "from-the-environment" not in str(psutil.Process(process.pid).cmdline())


def test_anonymous_access_must_be_explicit():
    with started(COUNTER, "--allow-anonymous") as (_, line):
        assert listed(url_in(line)) == 200


def test_ipv6_has_brackets_in_its_url():
    with started(COUNTER, "--host=::1") as (_, line):
        assert url_in(line).startswith("http://[::1]:")
        assert health(url_in(line)) == 200


def test_an_open_network_is_warned_of():
    with started(COUNTER, "--host=0.0.0.0") as (process, line):
        assert health(url_in(line)) == 200
        process.terminate()
        _, reported = process.communicate(timeout=30)
    assert "envweave: warning: 0.0.0.0 is open to the network: whoever has the token may use it" in reported


def test_on_all_addresses_the_names_that_were_allowed_are_answered_and_no_others():
    with started(COUNTER, "--host=0.0.0.0", "--allow-host=ok.example") as (_, line):
        for name, status in (("ok.example", 200), ("localhost", 200), ("evil.example", 403)):
            url = url_in(line).partition("?")[0] + "health"
            assert requests.get(url, headers={"Host": name}, timeout=10).status_code == status


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--port=x"], "--port"),
        (["--port=70000"], "port 70000 is no port"),
        (["--host=nohost.invalid"], "'nohost.invalid' port 8000 cannot be listened on"),
        (["nope"], "'nope' cannot be served"),
        (["no_module:Thing"], "there is no module 'no_module'"),
        (["served_envs:Nothing"], "has no attribute 'Nothing'"),
        (["docker://image"], "'docker://image' cannot be served"),
        (["--token-fd=999"], "--token-fd 999 cannot be read: Bad file descriptor"),
        (["--token-file=/no/such/folder/token"], "No such file or directory"),
        (["--token-file=/dev/zero"], "--token-file /dev/zero holds no token"),
        (["--token-fd=0", "--token-file=x"], "give one of them"),
        (["--allow-anonymous", "--token-file=x"], "lets everybody in"),
        (["--max-sessions=0"], "--max-sessions 0 is not more than 0"),
        (["--idle-timeout=nan"], "--idle-timeout nan is not more than 0"),
        (["--client-timeout=0"], "--client-timeout 0.0 is not more than 0"),
        (["--drain=inf"], "--drain inf is longer than this system can wait"),
        (["--allow-kwargs=x"], "--allow-kwargs 'x' is not of the form ID=name,name"),
        (["--allow-kwargs=Nope-v0=a"], "'Nope-v0' is not served here"),
        (["--allow-kwargs=envweave/Counter-v0=a,"], "are no names of arguments of envweave/Counter-v0"),
        (["--isolation=container"], "'container'"),
        (["--call-timeout=5"], "--call-timeout 5.0 limits the process of a session, and with threads"),
        (["--worker-memory=4g", "--isolation=thread"], "--worker-memory 4g limits the process of a session"),
        (["--largest-frame=64 MiB"], "--largest-frame 64 MiB is no size; give bytes, or text like '512m'"),
        (
            ["--largest-frame=1"],
            "--largest-frame 1 is outside the allowed range; give 64k to 1g (65536 to 107374",
        ),
        (["--unknown"], "--unknown"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(words: list[str], says: str, capsys: pytest.CaptureFixture[str]):
    assert main(words) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("envweave: ")
    assert says in line


def test_a_token_that_cannot_be_written_leaves_no_file_behind(tmp_path: Path):
    command = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", PROGRAM, "serve", f"--token-file={tmp_path / 't'}"]
    unmeasured = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=unmeasured)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"envweave: --token-file {tmp_path / 't'} cannot be used: File too large\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("token", ["", "  ", "with a space", "wörd-of-eight", "tab\tbetween", "short"])
def test_an_invalid_token_is_refused(
    token: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("ENVWEAVE_TOKEN", token)
    assert main([COUNTER]) == 2
    assert "ENVWEAVE_TOKEN holds no token" in capsys.readouterr().err
    for serve in (create_app, run_server):
        with pytest.raises(InvalidArgument, match="token= holds no token; give 8 or more") as caught:
            serve(COUNTER, token=token)
        assert not token.strip() or token not in str(caught.value)


def test_a_token_that_is_given_is_the_only_one():
    for more in ({"allow_anonymous": True}, {"token_file": "x"}, {"token_fd": 0}):
        with pytest.raises(InvalidArgument, match="token= is given; leave out"):
            run_server(COUNTER, token="a-token-of-tests", **more)


def test_a_port_in_use_is_one_line(capsys: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main([COUNTER, f"--port={taken.getsockname()[1]}"]) == 2
    assert "Address already in use" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["flask", "gunicorn", "prometheus_client"])
def test_a_missing_package_is_one_line(module: str):
    blocked = f"import sys; sys.modules[{module!r}] = None; sys.argv[1:] = ['serve']\n"
    for run in (
        "from envweave_gym.cli import main",
        "from envweave_gym_server.__main__ import main",
        "from envweave_gym_server import create_app as main",
    ):
        script = f"{blocked}{run}\nsys.exit(main())"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
        wanted = f"needs {module}, which is not installed: pip install 'envweave-gym[server]'"
        assert wanted in done.stderr.splitlines()[-1]
        assert done.returncode == 1
        assert len(done.stderr.splitlines()) == 1 or "create_app" in run


def test_the_episode_of_the_documentation_is_played_by_curl(tmp_path: Path):
    needs_command("curl")
    page = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
    [script] = [block for block in re.findall(r"^```bash\n(.*?)^```", page, re.M | re.S) if "ask()" in block]
    with running_server(COUNTER) as server:
        environment = {**os.environ, "URL": server.url, "TOKEN": server.token or ""}
        done = subprocess.run(
            ["sh", "-e", "-c", script], capture_output=True, text=True, env=environment, timeout=60
        )
    assert (done.returncode, done.stderr) == (0, "")
    reported = done.stdout.splitlines()
    assert json.loads(reported[2]) == {"session": "mine", "id": COUNTER, "api": "gym", "call": 0}
    began, stepped, stands = (json.loads(line) for line in reported[3:6])
    assert stepped["observation"]["count"] == began["observation"]["count"] + 1
    assert (stands["call"], stands["state"]["step_count"]) == (2, 1)
    assert "event: step" in reported


def test_a_server_works_without_a_reader_of_its_output():
    environment = {**os.environ, "ENVWEAVE_TOKEN": TOKEN}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [PROGRAM, "serve", COUNTER, f"--port={port}"]
    reader, writer = os.pipe()
    os.close(reader)
    with subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE, env=environment) as process:
        os.close(writer)
        until(lambda: is_there(f"http://127.0.0.1:{port}/health"), 60)
        assert listed(f"http://127.0.0.1:{port}/", TOKEN) == 200
        process.terminate()
        _, reported = process.communicate(timeout=30)
    assert b"Traceback" not in reported
