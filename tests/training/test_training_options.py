"""The options of the demos: what cannot be is refused before anything is trained."""

import dataclasses
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from absent import needs_module

from envweave_gym.core.faults import UnknownEnvironment
from envweave_gym.training import codefix, kuhn, lineworld
from envweave_gym.training.options import CommonOptions, parse_options, run_demo

KINDS = [lineworld.Options, kuhn.Options, codefix.Options]
BAD = [math.nan, math.inf, -math.inf, -1.0]


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, field.name) for kind in KINDS for field in dataclasses.fields(kind) if field.type == "float"],
)
def test_every_number_of_every_demo_is_finite_and_in_range(
    kind: type[CommonOptions], name: str, capsys: pytest.CaptureFixture[str]
):
    flag = f"--{name.replace('_', '-')}"
    for value in BAD + [0.0] * (name in ("learning_rate", "target")):
        with pytest.raises(SystemExit) as stopped:
            parse_options(kind, "", [f"{flag}={value}"])
        assert stopped.value.code == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert f"error: {flag} {value} is out of range; give a finite number >" in line
    assert getattr(parse_options(kind, "", [f"{flag}=0.5"]), name) == 0.5


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--episodes=x"], "argument --episodes: invalid int value: 'x'"),
        (["--no-such-option"], "unrecognized arguments: --no-such-option"),
        (["--episodes"], "argument --episodes: expected one argument"),
        (["--backend=inproc", "--docker-image=x"], "--docker-image 'x' is for a --backend"),
    ],
)
def test_a_refused_option_is_one_line(words: list[str], problem: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stopped:
        parse_options(lineworld.Options, "", words)
    assert stopped.value.code == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert printed.startswith(f"error: {problem}")


def test_an_unknown_environment_is_wrong_usage_in_one_line(capsys: pytest.CaptureFixture[str]):
    def train(options: Any) -> None:
        raise UnknownEnvironment("there is no environment no/Such-v0")

    assert run_demo(train, None) == 2
    assert capsys.readouterr().err == "error: there is no environment no/Such-v0\n"


def test_a_number_beyond_all_floats_is_refused():
    with pytest.raises(ValueError, match=r"--episodes 10+ is out of range"):
        lineworld.Options(episodes=10**400)


@pytest.mark.parametrize("run", ["../x", "a/b", "/tmp/x", "..", ".", "x/", "a\\b"])
def test_a_run_is_a_name_not_a_path(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stopped:
        lineworld.main(["--out", str(tmp_path / "runs"), "--run", run])
    assert stopped.value.code == 2
    assert f"--run {run!r} is a path; give a name" in capsys.readouterr().err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("demo", [lineworld, kuhn, codefix])
def test_a_run_that_cannot_be_written_is_refused_before_training(
    demo: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    if demo is codefix:
        needs_module("torch", "train")
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "taken" / demo.Options.demo / "metrics.jsonl").mkdir(parents=True)
    for out, problem in (
        (tmp_path / "file", "Not a directory"),
        (tmp_path / "file" / "deeper", "Not a directory"),
        (tmp_path / "taken", "Is a directory"),
        (Path("/proc/none"), "No such file or directory"),
        (tmp_path / ("x" * 300), "File name too long"),
    ):
        assert demo.main(["--out", str(out)]) == 2
        done = capsys.readouterr()
        assert done.out == ""
        assert done.err == (
            f"error: no run can be written to {out / demo.Options.demo} ({problem}); give another --out\n"
        )


def test_a_command_ends_without_visiting_all_objects_again():
    program = (
        "import atexit, gc\n"
        "from envweave_gym.training.options import run_demo\n"
        "atexit.register(lambda: print(gc.get_freeze_count() > 1000))\n"
        "run_demo(lambda options: None, None)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout == "True\n"
