"""The program ``envweave``: its exit codes, and one line for whatever goes wrong."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import Any

import gymnasium as gym
import pytest
from cli_program import PROGRAM, run, until

import envweave_gym
from envweave_gym.cli import main
from envweave_gym.core.faults import UnknownEnvironment


@pytest.mark.parametrize("command", ["play", "info"])
def test_an_unknown_id_is_one_line_with_the_nearest_names(command: str):
    done = run(command, "envweave/Conter-v0")
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("envweave: no environment is called 'envweave/Conter-v0'")
    assert "envweave/Counter-v0" in line


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("CodeFx", "envweave/CodeFix-v0"),
        ("codefix-v7", "envweave/CodeFix-v0"),
        ("envweave/Codefx-v0", "envweave/CodeFix-v0"),
        ("LineWrold", "envweave/LineWorld-v0"),
        ("lineword-v0", "envweave/LineWorld-v0"),
        ("line", "envweave/LineRace-v0, envweave/LineWorld-v0"),
        ("poker", "envweave/KuhnPoker-v0"),
        ("CartPole-v9", "CartPole-v1"),
    ],
)
def test_a_mistyped_or_shortened_name_gets_its_hint(name: str, near: str):
    with pytest.raises(UnknownEnvironment) as caught:
        envweave_gym.make(name)
    assert near in str(caught.value).partition("; the nearest names are ")[2]


@pytest.mark.parametrize("name", ["nope", "foo", "quux", "khun", "envweave/Fo-v0", "env", "x"])
def test_a_name_like_no_other_gets_no_silly_hint(name: str):
    with pytest.raises(UnknownEnvironment) as caught:
        envweave_gym.make(name)
    assert "nearest" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "COMMAND"),
        (["serv"], "'serv'"),
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


def test_a_missing_feature_is_a_failure_and_no_wrong_usage(capsys: pytest.CaptureFixture[str]):
    assert main(["info", "prime://owner/no-such-name"]) == 1
    assert "envweave hub install owner/no-such-name" in capsys.readouterr().err


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


def test_a_broken_pipe_inside_an_environment_is_a_fault_with_its_reason(capfd: pytest.CaptureFixture[str]):
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
        until(process.stdout.fileno(), b"agent> ")
        # The prompt is out a moment before the program waits for its answer, and a signal in that moment is
        # heard only when the waiting ends; so stdin stays open, and Ctrl-C is pressed until it is heard.
        for _ in range(20):
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1)
                break
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


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_is_one_that_is_empty(closed: str):
    for words in ("list", "play envweave/Echo-v0"):
        command = f"'{PROGRAM}' {words} {closed}"
        done = subprocess.run(
            ["sh", "-c", command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, "")
