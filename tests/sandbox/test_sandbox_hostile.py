"""Programs that try to get out, or to take the machine with them, in all places where a sandbox may be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from absent import absent, needs_command, needs_data
from engines import CORE, client
from sandboxes import REACHES, SNIPPETS, Snippet, all_problems, given, needs, readable_python

__all__ = ["client"]
ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parents[1] / "support" / "sandboxes.py"
NOBODY = 65534


@pytest.fixture(params=["own", "given"])
def snippets(request: pytest.FixtureRequest) -> list[Snippet]:
    """Those of this project, and those of the folder with data, where there is one."""
    if request.param == "own":
        return SNIPPETS
    needs_data("hostile_snippets.json")
    return given()


def a_readable_python() -> str:
    """An interpreter that all users may run."""
    return readable_python() or absent("there is no interpreter that all users may run")


def test_nothing_gets_out_at_landlock(snippets: list[Snippet]) -> None:
    needs("landlock")
    assert all_problems("landlock", snippets) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_nothing_gets_out_at_landlock_where_episodes_are_users_of_their_own(snippets: list[Snippet]) -> None:
    needs("landlock")
    assert all_problems("landlock", snippets, a_readable_python()) == []


def test_nothing_gets_out_at_namespace(snippets: list[Snippet]) -> None:
    needs("namespace")
    assert all_problems("namespace", snippets, readable_python() or sys.executable) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_nothing_gets_out_where_the_host_is_an_ordinary_user(snippets: list[Snippet]) -> None:
    needs("landlock")
    assert problems_as_nobody("landlock", snippets) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_at_process_an_ordinary_host_is_neither_read_nor_written() -> None:
    needs("landlock")
    assert problems_as_nobody("process", REACHES) == []


def test_at_process_the_host_is_neither_read_nor_written() -> None:
    needs("landlock")
    assert all_problems("process", REACHES) == []


def problems_as_nobody(level: str, snippets: list[Snippet]) -> list[str]:
    """What is wrong with how programs end whose host is an ordinary user."""
    python = a_readable_python()
    if not _can_import(python):
        pytest.skip(f"{python} is another version, which our packages are not for")
    tried = subprocess.run(
        [python, "-B", str(PROGRAM), level],
        input=json.dumps(snippets),
        capture_output=True,
        text=True,
        env=_environ(),
        cwd="/",
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        timeout=220,
        check=False,
    )
    assert tried.returncode == 0, tried.stderr
    return json.loads(tried.stdout)


def _environ() -> dict[str, str]:
    packages = [path for path in sys.path if path.endswith("-packages")]
    return {"PATH": os.defpath, "PYTHONPATH": os.pathsep.join([str(ROOT), *packages])}


def _can_import(python: str) -> bool:
    asked = [python, "-B", "-c", "import envweave_gym"]
    return subprocess.run(asked, env=_environ(), cwd="/", user=NOBODY, capture_output=True).returncode == 0


@pytest.mark.parametrize("user", ["0:0", "1000:1000"])
def test_nothing_gets_out_in_a_container(client: Any, snippets: list[Snippet], user: str) -> None:
    needs_command("docker")
    command = ["docker", "run", "--rm", "--interactive", "--network", "none", "--user", user]
    command += ["--volume", f"{ROOT}:/project:ro", "--env", "PYTHONPATH=/project", "--entrypoint", "python"]
    tried = subprocess.run(
        [*command, CORE, "-B", "/project/tests/support/sandboxes.py", "container"],
        input=json.dumps(snippets),
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert tried.returncode == 0, tried.stderr
    assert json.loads(tried.stdout) == []
