"""Named suites in files, and ``envweave suites``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from toy_wheels import package_folder, toy_wheel

import envweave_gym
from envweave_gym.cli import main
from envweave_gym.core.faults import InvalidArgument, NotAvailable
from envweave_gym.suites.requirement_lists import relative_to
from envweave_gym.suites.suite_files import (
    NamedSuite,
    add_suite,
    known_suites,
    remove_suite,
    suite_of,
    user_file,
)


@pytest.fixture(scope="session", autouse=True)
def toys(wheels: Path) -> None:
    for version in ("1.0", "2.0"):
        toy_wheel(wheels, "filed", version, {"filed.py": ""})


def suite(name: str, *requirements: str, **fields: Any) -> NamedSuite:
    return NamedSuite(name=name, requirements=requirements or ("filed",), file=user_file(), **fields)


def test_suites_are_added_and_removed_and_all_other_lines_stay(offline: Path):
    add_suite(suite("first", "filed==1.0", ids=("Filed*",)))
    file = user_file()
    second = "# about the second\n[suites.second]\nrequirements = ['a']\n"
    file.write_text(f"# mine\nother = 1\n\n{file.read_text()}\n{second}")
    add_suite(suite("third", python="3.11"))
    assert [*known_suites()] == ["first", "second", "third"]
    remove_suite(known_suites()["first"])
    text = file.read_text()
    assert "# mine\nother = 1\n" in text
    assert "# about the second\n[suites.second]" in text
    assert [*known_suites()] == ["second", "third"]
    remove_suite(known_suites()["third"])
    remove_suite(known_suites()["second"])
    assert tomllib.loads(file.read_text()) == {"other": 1}


def test_a_name_is_replaced_only_if_that_is_said(offline: Path):
    add_suite(suite("one", "filed==1.0"))
    with pytest.raises(InvalidArgument, match="--replace"):
        add_suite(suite("one", "filed==2.0"))
    add_suite(suite("one", "filed==2.0"), replace=True)
    assert known_suites()["one"].requirements == ("filed==2.0",)
    with pytest.raises(InvalidArgument, match="letters, digits"):
        add_suite(suite("a b"))


@pytest.mark.parametrize(
    "text", ["[suites]\nnle = {requirements = ['a']}\n", "suites.nle.requirements = ['a']\n"]
)
def test_a_form_that_cannot_be_changed_is_refused(offline: Path, text: str):
    file = user_file()
    file.parent.mkdir(parents=True)
    file.write_text(text)
    for change in (lambda: remove_suite(suite("nle")), lambda: add_suite(suite("nle"), replace=True)):
        with pytest.raises(InvalidArgument, match="by hand"):
            change()
    assert file.read_text() == text


def test_quoted_names_are_found_and_links_stay_links(offline: Path, tmp_path: Path):
    file = user_file()
    file.parent.mkdir(parents=True)
    (tmp_path / "dotfiles").write_text("[suites.'nle']\nrequirements = ['a']\n")
    file.symlink_to(tmp_path / "dotfiles")
    add_suite(suite("nle", "filed"), replace=True)
    assert file.is_symlink()
    assert known_suites()["nle"].requirements == ("filed",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[suites", "not valid TOML"),
        ("suites = 3", "no table"),
        ("suites.a = 3", "no table"),
        ("[suites.a]\nids = []", "requirements and ids are lists"),
        ("[suites.a]\nrequirements = 'a'", "requirements and ids are lists"),
        ("[suites.a]\nrequirements = ['a']\npython = 3.1", "'3.10'"),
        ("[suites.a]\nrequirement = ['a']", "did you mean 'requirements'"),
    ],
)
def test_a_broken_file_is_one_sentence_that_names_it(offline: Path, text: str, words: str):
    user_file().parent.mkdir(parents=True)
    user_file().write_text(text)
    for use in (lambda: suite_of("Any-v0"), lambda: add_suite(suite("b"))):
        with pytest.raises(InvalidArgument, match=words) as refused:
            use()
        assert str(user_file()) in str(refused.value)


def test_processes_that_add_at_once_lose_nothing(offline: Path):
    code = (
        "import sys\nfrom envweave_gym.suites.suite_files import NamedSuite, add_suite, user_file\n"
        "for i in range(8): add_suite(NamedSuite(name=f'{sys.argv[1]}{i}', requirements=('x',), file=user_file()))"
    )
    started = [subprocess.Popen([sys.executable, "-c", code, name]) for name in ("a", "b")]
    assert [process.wait(120) for process in started] == [0, 0]
    assert len(known_suites()) == 16


# A project's file


def test_a_project_names_suites_for_everybody_in_it(offline: Path):
    add_suite(suite("toy", "filed==1.0", ids=("Toy*",)))
    Path("envweave.toml").write_text(
        "[suites.toy]\nrequirements = ['filed==2.0', './package']\nids = ['Toy*']\n"
    )
    Path("inner").mkdir()
    Path("package").mkdir()
    Path("package/setup.py").write_text("")
    os.chdir("inner")
    found = suite_of("toys:Toy-v0")
    assert found is not None
    assert found.requirements == ("filed==2.0", "./package")
    with pytest.raises(NotAvailable, match=r"suite 'toy' of .*envweave\.toml.*envweave suites add toy$"):
        envweave_gym.make("Toy-v0", backend="venv")


def test_files_that_others_may_write_or_of_another_project_are_not_read(offline: Path):
    Path("envweave.toml").write_text("[suites.toy]\nrequirements = ['filed']\n")
    Path("envweave.toml").chmod(0o666)
    assert known_suites() == {}
    Path("envweave.toml").chmod(0o644)
    assert [*known_suites()] == ["toy"]
    Path("inner/.git").mkdir(parents=True)
    os.chdir("inner")
    assert known_suites() == {}


def test_an_id_of_several_suites_needs_a_choice(offline: Path):
    add_suite(suite("a", ids=("Toy*",)))
    add_suite(suite("b", ids=("*-v0",)))
    with pytest.raises(InvalidArgument, match=r"Toy-v0: .*'a', 'b'; choose one with suite="):
        envweave_gym.make("Toy-v0", backend="venv")
    for wrong in ("c", ["a"]):
        with pytest.raises(InvalidArgument, match="there is no suite"):
            envweave_gym.make("Toy-v0", backend="venv", suite=wrong)
    with pytest.raises(InvalidArgument, match="both say which suite"):
        envweave_gym.make("Toy-v0", backend="venv", suite="a", requirements=["filed"])
    with pytest.raises(InvalidArgument, match="python= needs requirements="):
        envweave_gym.make("Toy-v0", backend="venv", suite="a", python="3.10")


# The command


def test_the_command_installs_lists_and_removes(
    toy_suite: str, offline: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["suites", "list"]) == 0
    assert "no suites" in capsys.readouterr().out
    assert main(["suites", "add", "toy", toy_suite, "--ids", "toy/*"]) == 0
    assert main(["suites", "add", "toy", "filed"]) == 2
    assert "--replace" in capsys.readouterr().err
    env = envweave_gym.make("toy/Walk-v0", backend="venv")
    env.reset(seed=0)
    assert main(["suites", "list", "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert (row["name"], row["state"], row["ids"]) == ("toy", "installed", ["toy/*"])
    assert "toy-suite==1.0" in row["pins"]
    assert main(["suites", "sweep", "--days", "0"]) == 0
    assert "nothing to remove" in capsys.readouterr().out
    env.close()
    assert main(["suites", "remove", "toy"]) == 0
    assert "and its environment" in capsys.readouterr().out
    assert not Path(row["folder"]).exists()
    assert main(["suites", "remove", "toy"]) == 2


def test_an_install_that_fails_is_not_remembered(offline: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["suites", "add", "toy", "nowhere-at-all==1"]) == 1
    assert "nowhere-at-all was not found" in capsys.readouterr().err
    assert known_suites() == {}
    assert main(["suites", "add", "unknown"]) == 2
    capsys.readouterr()
    assert main(["suites", "add"]) == 2
    assert "required: NAME; see" in capsys.readouterr().err
    assert main(["suites", "sweep", "--days", "-1"]) == 2


@pytest.mark.parametrize("options", [["--ids", "Toy*"], ["--python", "3.11", "--project"]])
def test_options_without_requirements_are_refused(
    offline: Path, capsys: pytest.CaptureFixture[str], options: list[str]
):
    add_suite(suite("toy"))
    assert main(["suites", "add", "toy", *options]) == 2
    said = capsys.readouterr().err
    assert "without requirements" in said
    assert all(option in said for option in options if option.startswith("--"))
    assert not offline.exists()


def test_a_project_file_has_paths_relative_to_itself(offline: Path, capsys: pytest.CaptureFixture[str]):
    package_folder(Path("ours"), "ours", {"ours.py": ""})
    Path("envweave.toml").write_text("")
    Path("inner").mkdir()
    os.chdir("inner")
    elsewhere = str(Path("../ours").resolve())
    assert main(["suites", "add", "toy", "../ours", "filed<2", "--project"]) == 0
    assert main(["suites", "add", "far", elsewhere, "--project"]) == 0
    assert known_suites()["toy"].requirements == ("./ours", "filed<2")
    assert known_suites()["far"].requirements == (elsewhere,)
    capsys.readouterr()
    os.chdir("..")
    os.rename("../work", "../moved")
    os.chdir("../moved/inner")
    assert main(["suites", "add", "toy"]) == 0
    assert "is installed in" in capsys.readouterr().out
    assert main(["suites", "add", "far"]) == 2


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        ("/a/b", "./"),
        ("/a/b[x]", "./[x]"),
        ("/a/b/c[x,y]", "./c[x,y]"),
        ("/a", "../"),
        ("/a/d.whl", "../d.whl"),
        ("nle==1.3.0", "nle==1.3.0"),
        ("x @ file:///a/b", "x @ file:///a/b"),
    ],
)
def test_relative_requirements(requirement: str, expected: str):
    assert relative_to(Path("/a/b"), requirement) == expected


def test_environments_without_a_name_are_listed_and_a_project_file_is_written(
    offline: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["suites", "add", "filed", "filed==1.0", "--project"]) == 0
    assert tomllib.loads(Path("envweave.toml").read_text())["suites"]["filed"] == {
        "requirements": ["filed==1.0"]
    }
    assert main(["suites", "remove", "filed"]) == 0
    from envweave_gym.suites.virtual_environments import acquire, venv_spec

    acquire(venv_spec("x", ["filed==1.0"]), install=True).release()
    capsys.readouterr()
    assert main(["suites", "list"]) == 0
    assert "unnamed" in capsys.readouterr().out


_WORLDS = """
import gymnasium as gym
import numpy as np

class World(gym.Env):
    observation_space, action_space = gym.spaces.Box(0, 1, (1,), np.float32), gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}
    def step(self, action): return np.zeros(1, np.float32), 0.0, False, False, {}

gym.register("Worlds/World-v0", "worlds:World", max_episode_steps=3)
"""


def test_the_atlas_tries_a_folder_whose_name_is_not_that_of_its_package(
    offline: Path, capsys: pytest.CaptureFixture[str]
):
    requires = ["gymnasium", "pettingzoo", "numpy", "msgspec"]
    package_folder(Path("checkout"), "toyworlds", {"worlds.py": _WORLDS}, requires)
    assert main(["atlas", "./checkout", "--install", "--rule", "closes_twice", "--jobs", "1"]) == 0
    assert "toyworlds Worlds/World-v0 (gym): 0 findings" in capsys.readouterr().out
    assert "| toyworlds 1.0 |" in Path("atlas/atlas.md").read_text()
