"""``envweave atlas``: options, files, and what it says when there is nothing to survey."""

from __future__ import annotations

from pathlib import Path

import pytest

from envweave_gym.cli import USAGE, main


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no virtual environment of this user be found."""
    monkeypatch.setenv("ENVWEAVE_SUITES", str(tmp_path / "cache"))
    monkeypatch.delenv("ENVWEAVE_INSTALL", raising=False)


def test_packages_of_this_python_are_surveyed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "found"
    words = ["atlas", "gymnasium", "--here", "--ids", "CartPole-v1", "--out", str(out)]
    assert main([*words, "--rule", "closes_twice"]) == 0
    assert main([*words, "--rule", "closes_twice"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "gymnasium CartPole-v1 (gym): 0 findings" in lines[1]
    assert "1 chosen, 0 to be tried" in lines[3]
    text = (out / "atlas.md").read_text()
    assert "| gymnasium 1." in text
    assert "`closes_twice`" in text
    assert len((out / "atlas.jsonl").read_text().splitlines()) == 3


def test_a_suite_that_is_not_installed_says_which_command_installs_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["atlas", "minigrid==3.2.0", "--out", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert "envweave atlas minigrid==3.2.0 --install" in error
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "cache").exists()


def test_paths_of_a_named_suite_are_relative_to_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    package, elsewhere = tmp_path / "config" / "envweave" / "package", tmp_path / "elsewhere"
    for folder in (package, elsewhere):
        folder.mkdir(parents=True)
        (folder / "pyproject.toml").write_text('[project]\nname = "toy"\nversion = "1.0"\n')
    (package.parent / "suites.toml").write_text('[suites.toys]\nrequirements = ["./package"]\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(elsewhere)
    assert main(["atlas", "toys", "--with", "."]) == 1
    assert f"toys needs {package}, {elsewhere}, msgspec" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["gymnasium", "--here", "--rule", "same_sed"], "same_seed"),
        (["gymnasium", "--here", "--jobs", "0"], "above 0"),
        (["gymnasium", "--here", "--limit", "many"], "above 0"),
        ([], "SUITE"),
    ],
)
def test_wrong_usage_is_one_line(words: list[str], text: str, capsys: pytest.CaptureFixture[str]):
    assert main(["atlas", *words]) == USAGE
    error = capsys.readouterr().err
    assert text in error
    assert len(error.splitlines()) == 1


def test_a_package_that_is_not_here_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["atlas", "no-such-suite", "--here", "--out", str(tmp_path)]) == 1
    assert "no-such-suite" in capsys.readouterr().err
