"""The cache of virtual environments: what is installed, with whose consent, and what is left afterwards."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from toy_wheels import package_folder, toy_wheel

from envweave_gym.cli import main
from envweave_gym.core.faults import InvalidArgument, MissingExtra, NotAvailable
from envweave_gym.os_support import file_lock
from envweave_gym.suites import uv_commands, virtual_environments
from envweave_gym.suites.requirement_lists import name_of
from envweave_gym.suites.virtual_environments import (
    acquire,
    installed,
    interpreter_of,
    is_installed,
    remove_unused,
    sweep,
    venv_spec,
)


@pytest.fixture(scope="session", autouse=True)
def toys(wheels: Path) -> None:
    for version in ("1.0", "2.0"):
        toy_wheel(wheels, "pinned", version, {"pinned.py": f"VERSION = '{version}'\n"})
    toy_wheel(wheels, "wants_one", "1.0", {"wants_one.py": ""}, requires=["pinned<2"])


def printed(interpreter: Path, code: str) -> str:
    done = subprocess.run(
        [interpreter, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def everything_in(cache: Path) -> list[str]:
    return sorted(
        str(path.relative_to(cache))
        for part in ("environments", "resolutions")
        for path in (cache / part).glob("*")
    )


def test_an_environment_is_made_with_consent_once_and_shared_by_equal_requirements(offline: Path):
    with pytest.raises(NotAvailable) as refused:
        interpreter_of(["pinned==1.0"], what="MyEnv-v0")
    for part in (
        "MyEnv-v0",
        "pinned==1.0",
        "install=True",
        "ENVWEAVE_INSTALL=1",
        "envweave suites add pinned",
    ):
        assert part in str(refused.value)
    assert not offline.exists()
    interpreter = interpreter_of(["pinned==1.0"], install=True)
    assert printed(interpreter, "import pinned; print(pinned.VERSION)") == "1.0"
    assert interpreter_of(["pinned==1.0"]) == interpreter
    assert interpreter_of(["pinned<2"], install=True) == interpreter  # the same pins
    assert is_installed(["pinned<2"])
    assert not is_installed(["pinned"])
    assert len(installed()) == 1
    assert not list(offline.glob("resolutions/*.lock"))


def test_consent_may_be_a_variable_and_suites_with_contradictory_pins_stand_side_by_side(
    offline: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("ENVWEAVE_INSTALL", "1")
    versions = [
        printed(interpreter_of(wanted), "import pinned; print(pinned.VERSION)")
        for wanted in (["pinned"], ["wants_one", "pinned"])
    ]
    assert versions == ["2.0", "1.0"]
    assert "envweave: installing wants_one, pinned (Python " in capfd.readouterr().err
    monkeypatch.setenv("ENVWEAVE_INSTALL", "0")
    with pytest.raises(NotAvailable):
        interpreter_of(["pinned==2.0"])


def test_requirements_that_do_not_resolve_are_one_sentence_with_the_reason_of_uv(offline: Path):
    with pytest.raises(NotAvailable, match="nowhere-to-be-found was not found") as unknown:
        interpreter_of(["nowhere_to_be_found==1"], install=True, what="MyEnv-v0")
    with pytest.raises(NotAvailable, match="unsatisfiable") as contradictory:
        interpreter_of(["wants_one", "pinned==2.0"], install=True, what="MyEnv-v0")
    for error in (unknown, contradictory):
        assert str(error.value).startswith("MyEnv-v0: uv cannot resolve it: ")
        assert "\n" not in str(error.value)
        assert "╰" not in str(error.value)
    assert everything_in(offline) == []


def test_a_package_that_cannot_be_built_leaves_nothing(offline: Path, tmp_path: Path):
    folder = package_folder(tmp_path / "broken", "broken", {"broken.py": ""})
    (folder / "backend.py").write_text(
        "def build_wheel(*a, **k):\n    raise RuntimeError('no compiler here')\n"
    )
    with pytest.raises(NotAvailable, match="no compiler here"):
        interpreter_of([str(folder)], install=True)
    assert everything_in(offline) == []


@pytest.mark.parametrize("works_with", ["65.0", "64.0"])
def test_a_package_that_setuptools_refuses_is_built_with_an_old_one(
    offline: Path, wheels: Path, tmp_path: Path, works_with: str, monkeypatch: pytest.MonkeyPatch
):
    for version in ("65.0", "80.0"):
        toy_wheel(wheels, "setuptools", version, {"setuptools.py": f"VERSION = '{version}'\n"})
    folder = package_folder(tmp_path / "old", "old", {"old.py": "X = 1\n"})
    project, backend = folder / "pyproject.toml", folder / "backend.py"
    project.write_text(project.read_text().replace("requires = []", 'requires = ["setuptools"]'))
    refusal = "error in old setup command: 'extras_require' must be a dictionary"
    guard = f'import setuptools\nif setuptools.VERSION != "{works_with}": raise SystemExit("{refusal}")\n'
    backend.write_text(guard + backend.read_text())
    if works_with == "65.0":
        interpreter = interpreter_of([str(folder)], install=True)
        assert printed(interpreter, "import old; print(old.X)") == "1"
        return
    for version, advises in (((3, 11), False), ((3, 12), True)):
        monkeypatch.setattr(uv_commands, "_minor_of", lambda python, version=version: version)
        with pytest.raises(NotAvailable, match=r"'extras_require' must be ") as refused:
            interpreter_of([str(folder)], install=True)
        assert str(refused.value).endswith("give python='3.11' or older") == advises
    assert everything_in(offline) == []


@pytest.mark.parametrize("name", ["UV_DEFAULT_INDEX", "UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_OFFLINE"])
def test_pip_takes_no_package_from_another_index_than_uv(
    offline: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    monkeypatch.delenv("UV_OFFLINE")
    monkeypatch.setenv(name, "1")
    uv = uv_commands.Uv(Path(), "MyEnv-v0")
    with pytest.raises(NotAvailable, match=rf"requirements of gym==0\.21\.0, .* where {name} say"):
        uv._with_readable_metadata("gym", "0.21.0", sys.executable)
    for given in ("PIP_INDEX_URL", "PIP_NO_INDEX"):
        with monkeypatch.context() as patched:
            patched.setenv(given, "1")
            uv._check_indexes("gym==0.21.0")


def test_the_version_of_an_interpreter_is_its_own():
    assert uv_commands._minor_of(sys.executable) == sys.version_info[:2]


def test_an_interrupted_install_leaves_nothing_and_its_environment_is_made_by_the_next(
    offline: Path, monkeypatch: pytest.MonkeyPatch
):
    make = uv_commands.Uv.make

    def interrupted(self: uv_commands.Uv, *args: object) -> None:
        make(self, *args)  # pyright: ignore[reportArgumentType]
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(uv_commands.Uv, "make", interrupted)
        with pytest.raises(KeyboardInterrupt):
            interpreter_of(["pinned==1.0"], install=True)
    assert everything_in(offline) == []
    environment = acquire(venv_spec("x", ["pinned==1.0"]), install=True)
    folder, marker = environment.folder, "envweave.json"
    environment.release()
    (folder / marker).unlink()  # as after a kill in the middle
    (folder / "half").write_text("")
    assert not is_installed(["pinned==1.0"])
    again = interpreter_of(["pinned==1.0"], install=True)
    assert not (again.parent.parent / "half").exists()


def test_scratch_folders_of_killed_installs_are_removed_by_the_next(
    offline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    scratch = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        monkeypatch.setattr(tempfile, "tempdir", str(scratch))
        left = "import os, sys; from envweave_gym.os_support.owned_folders import owned_folder as made; "
        code = f"{left}print(made('envweave-wheels-'), flush=True); os._exit(0)"
        done = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(scratch)}, capture_output=True
        )
        assert done.returncode == 0
        assert len(list(scratch.iterdir())) == 1
        interpreter_of(["pinned==1.0"], install=True)
        assert not list(scratch.glob("envweave-wheels-*"))
    finally:
        shutil.rmtree(scratch)


def test_a_local_package_is_made_anew_after_an_edit_and_the_former_one_is_removed(
    offline: Path, tmp_path: Path
):
    folder = package_folder(tmp_path / "a toy", "toy", {"toy.py": "X = 1\n"}, requires=["pinned<2"])
    (folder / ".venv").mkdir()
    (folder / ".venv" / "pyvenv.cfg").write_text("")
    first = acquire(venv_spec("x", [str(folder)]), install=True)
    assert printed(first.python, "import toy, pinned; print(toy.X, pinned.VERSION)") == "1 1.0"
    (folder / ".venv" / "more.py").write_text("")  # no part of the package
    assert is_installed([str(folder)])
    (folder / "toy.py").write_text("X = 1 + 1\n")
    with pytest.raises(NotAvailable):
        interpreter_of([str(folder)])
    second = interpreter_of([str(folder)], install=True)
    assert printed(second, "import toy; print(toy.X)") == "2"
    assert len(installed()) == 2  # the first is in use
    first.release()
    (folder / "toy.py").write_text("X = 1 + 1 + 1\n")
    third = acquire(venv_spec("x", [str(folder)]), install=True)
    assert first.folder not in [one for one, _ in installed()]
    third.release()


def test_a_local_package_is_built_by_the_python_of_its_environment(offline: Path, tmp_path: Path):
    folder = package_folder(tmp_path / "toy", "toy", {"toy.py": "X = 1\n"})
    (folder / ".python-version").write_text("2.7\n")  # which uv would build it with otherwise
    interpreter = interpreter_of([str(folder)], install=True)
    assert printed(interpreter, "import toy; print(toy.X)") == "1"


def test_paths_are_those_of_the_caller_and_a_wheel_is_its_content(offline: Path):
    toy_wheel(Path("here"), "local", "1.0", {"local.py": "X = 1\n"})
    first = interpreter_of(["./here/local-1.0-py3-none-any.whl"], install=True)
    assert interpreter_of([str(Path("here/local-1.0-py3-none-any.whl").resolve())]) == first
    Path("elsewhere").mkdir()
    toy_wheel(Path("elsewhere/here"), "local", "1.0", {"local.py": "X = 2\n"})
    os.chdir("elsewhere")
    second = interpreter_of(["./here/local-1.0-py3-none-any.whl"], install=True)
    assert [printed(one, "import local; print(local.X)") for one in (first, second)] == ["1", "2"]


def test_the_project_that_trains_does_not_decide_the_versions(offline: Path, monkeypatch: pytest.MonkeyPatch):
    Path("pyproject.toml").write_text('[tool.uv]\nconstraint-dependencies = ["pinned<2"]\n')
    Path("pins.txt").write_text("pinned<2\n")
    monkeypatch.setenv("UV_CONSTRAINT", str(Path("pins.txt").resolve()))
    interpreter = interpreter_of(["pinned"], install=True)
    assert printed(interpreter, "import pinned; print(pinned.VERSION)") == "2.0"


@pytest.mark.parametrize("where", ["variable", "file"])
def test_settings_that_choose_among_versions_have_no_say(
    offline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
):
    if where == "variable":
        monkeypatch.setenv("UV_RESOLUTION", "lowest")
        monkeypatch.setenv("UV_EXCLUDE_NEWER", "2001-01-01")
    else:
        settings = Path(os.environ["UV_CONFIG_FILE"]).read_text()
        (tmp_path / "uv.toml").write_text(f'resolution = "lowest"\n{settings}')
        monkeypatch.setenv("UV_CONFIG_FILE", str(tmp_path / "uv.toml"))
    interpreter = interpreter_of(["pinned"], install=True)
    assert printed(interpreter, "import pinned; print(pinned.VERSION)") == "2.0"


def test_reading_what_is_installed_is_no_use_of_it(offline: Path, capsys: pytest.CaptureFixture[str]):
    acquire(venv_spec("x", ["pinned==1.0", "msgspec>=0.18"]), install=True).release()
    Path("envweave.toml").write_text("[suites.toy]\nrequirements = ['pinned==1.0']\n")
    [(folder, _)] = installed()
    os.utime(folder / "envweave.json", (1e9, 1e9))
    assert main(["suites", "list"]) == 0
    assert "installed" in capsys.readouterr().out
    assert is_installed(["pinned==1.0", "msgspec>=0.18"])
    assert (folder / "envweave.json").stat().st_mtime == 1e9
    acquire(venv_spec("x", ["pinned==1.0", "msgspec>=0.18"])).release()
    assert (folder / "envweave.json").stat().st_mtime > 1e9
    assert sweep(30) == []


def test_newer_versions_come_when_they_are_asked_for(offline: Path, wheels: Path):
    toy_wheel(wheels, "growing", "1.0", {"growing.py": ""})
    wanted = venv_spec("x", ["growing"])
    acquire(wanted, install=True).release()
    toy_wheel(wheels, "growing", "2.0", {"growing.py": ""})
    acquire(wanted, install=True).release()
    assert [marker.pins for _, marker in installed()] == [("growing==1.0",)]
    acquire(wanted, install=True, refresh=True).release()
    assert sorted(marker.pins for _, marker in installed()) == [("growing==1.0",), ("growing==2.0",)]


# Several processes, and the end of environments


def test_processes_that_want_the_same_make_it_once(offline: Path):
    code = (
        "from envweave_gym.suites.virtual_environments import interpreter_of\n"
        "print(interpreter_of(['pinned'], install=True))"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    results = [process.communicate(timeout=120) for process in started]
    assert len({out for out, _ in results}) == 1, results
    assert sum("installing" in complaint for _, complaint in results) == 1, results


def test_what_is_in_use_is_not_swept_and_a_child_that_inherits_the_lease_uses_it_too(offline: Path):
    environment = acquire(venv_spec("x", ["pinned"]), install=True)
    assert sweep(0) == []
    child = subprocess.Popen(
        [environment.python, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[environment.lock]
    )
    environment.release()
    assert sweep(0) == []
    child.communicate(b"\n", timeout=60)
    assert sweep(1) == []  # it was used a moment ago
    assert sweep(0) == [environment.folder.name]
    assert everything_in(offline) == []


def test_a_killed_owner_holds_no_lease(offline: Path):
    code = (
        "from envweave_gym.suites.virtual_environments import interpreter_of\n"
        "print(interpreter_of(['pinned'], install=True), flush=True)\ninput()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip()).parent.parent
        assert not remove_unused(folder)
        owner.send_signal(signal.SIGKILL)
        owner.wait(60)
        assert remove_unused(folder)
    assert everything_in(offline) == []


def test_sweeping_leaves_files_of_others_alone_and_removes_what_is_half_made(offline: Path):
    interpreter_of(["pinned"], install=True)
    (offline / "environments" / ".DS_Store").write_text("")
    (offline / "environments" / "half-made").mkdir()
    (offline / "resolutions" / "left.lock").write_text("")
    (offline / "resolutions" / "gone.json").write_text('{"environment": "nowhere"}')
    assert sweep() == ["half-made"]
    assert (offline / "environments" / ".DS_Store").exists()
    assert [path.suffix for path in (offline / "resolutions").iterdir()] == [".json"]


def test_a_folder_that_cannot_be_removed_stops_neither_installs_nor_the_sweep_of_others(
    offline: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    remove = virtual_environments.shutil.rmtree

    def refusing(path: Path, **how: Any) -> None:
        if Path(path).name == "a-stuck-one":
            raise PermissionError(13, "Permission denied")
        remove(path, **how)

    monkeypatch.setattr(virtual_environments.shutil, "rmtree", refusing)
    for name in ("a-stuck-one", "half-made"):
        (offline / "environments" / name).mkdir(parents=True)
    interpreter_of(["pinned"], install=True)
    said = capfd.readouterr().err
    assert "a-stuck-one cannot be removed: [Errno 13] Permission denied" in said
    assert not (offline / "environments" / "half-made").exists()
    (offline / "environments" / "half-made").mkdir()
    assert main(["suites", "sweep"]) == 1
    said = capfd.readouterr()
    assert said.out == "removed half-made\n"
    assert "a-stuck-one cannot be removed" in said.err
    with pytest.raises(NotAvailable, match="a-stuck-one"):
        sweep()


def test_who_waits_for_an_install_says_so_and_leaves_no_lock_at_its_deadline(
    offline: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    held = threading.Event()
    make = uv_commands.Uv.make
    go_on = threading.Event()

    def slow(self: uv_commands.Uv, *args: object) -> None:
        held.set()
        assert go_on.wait(60)
        make(self, *args)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(uv_commands.Uv, "make", slow)
    monkeypatch.setattr(virtual_environments, "_INSTALL_TIMEOUT_S", 0.3)
    monkeypatch.setattr(file_lock, "_SILENCE_S", 0.1)
    first = threading.Thread(target=interpreter_of, args=[["pinned"]], kwargs={"install": True})
    first.start()
    assert held.wait(60)
    with pytest.raises(NotAvailable, match=r"another process .* has held .*\.lock"):
        interpreter_of(["pinned"], install=True)
    said = capfd.readouterr().err
    assert said.count("waiting for another process, which installs pinned and holds /") == 1
    go_on.set()
    first.join(60)
    assert is_installed(["pinned"])


# Wrong arguments


@pytest.mark.parametrize(
    ("requirements", "words"),
    [
        ("nle", "not a list"),
        (3, "not a list"),
        ([], "not a list"),
        ([None], "not a requirement"),
        ([""], "not a requirement"),
        (["pinned\rmsgspec"], "not a requirement"),
        (["pinned\nmsgspec"], "not a requirement"),
        (["--index-url=https://elsewhere"], "option"),
        (["-e ."], "option"),
        (["pinned --hash=sha256:00"], "option"),
        (["pinned \\"], "option"),
        (["./nowhere"], "no file or folder"),
        (["nowhere-1.0-py3-none-any.whl"], "no file or folder"),
        (["toy @ file:///nowhere/at/all"], "no file or folder"),
        (["."], "neither pyproject.toml nor setup.py"),
    ],
)
def test_what_is_no_requirement_is_refused(offline: Path, requirements: object, words: str):
    with pytest.raises(InvalidArgument, match=words):
        interpreter_of(requirements, install=True)  # pyright: ignore[reportArgumentType]
    assert not offline.exists()


@pytest.mark.parametrize("python", [3.10, "--help", "", "3.10\n", 3])
def test_what_is_no_interpreter_is_refused(offline: Path, python: object):
    with pytest.raises(InvalidArgument, match=r"such as '3\.10'"):
        interpreter_of(["pinned"], python=python, install=True)  # pyright: ignore[reportArgumentType]


def test_another_environment_of_this_python_finds_what_is_installed(
    offline: Path, monkeypatch: pytest.MonkeyPatch
):
    interpreter_of(["pinned"], install=True)
    monkeypatch.setattr(sys, "executable", "/another/venv/bin/python")
    assert is_installed(["pinned"])
    monkeypatch.setattr(virtual_environments.platform, "python_version", lambda: "3.11.99")
    assert not is_installed(["pinned"])


def test_an_interpreter_that_is_not_there_is_one_sentence(offline: Path):
    with pytest.raises(NotAvailable, match=r"3\.5"):
        interpreter_of(["pinned"], python="3.5", install=True)
    with pytest.raises(NotAvailable, match="python"):
        interpreter_of(["pinned"], python="/nowhere/python", install=True)


def test_a_version_and_a_path_may_name_the_interpreter(offline: Path):
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    by_version = interpreter_of(["pinned"], python=version, install=True)
    by_path = interpreter_of(["pinned"], python=sys.executable, install=True)
    assert printed(by_version, "import sys; print('%d.%d' % sys.version_info[:2])") == version
    assert printed(by_path, "import sys; print('%d.%d' % sys.version_info[:2])") == version


def test_a_folder_that_cannot_be_used_is_one_sentence(offline: Path, monkeypatch: pytest.MonkeyPatch):
    offline.write_text("no folder")
    with pytest.raises(NotAvailable, match="ENVWEAVE_SUITES"):
        interpreter_of(["pinned"], install=True)
    assert sweep() == []
    assert installed() == []


def test_without_uv_the_error_says_how_to_get_it(offline: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingExtra, match=r"pip install 'envweave-gym\[suites\]'"):
        interpreter_of(["pinned"], install=True)


def test_passwords_of_urls_are_not_printed(offline: Path):
    with pytest.raises(NotAvailable) as refused:
        interpreter_of(
            ["secret @ https://user:pass@host/secret-1.whl"], command="envweave hub install secret"
        )
    assert "pass" not in str(refused.value)
    assert "envweave hub install secret" in str(refused.value)
    for word in ("pass", "p@ss"):
        with pytest.raises(NotAvailable) as refused:
            interpreter_of([f"git+https://user:{word}@host/some/secret.git@v1.0"])
        assert f"user:{word}" not in str(refused.value)
        assert "suites add secret 'git+https://***@host/some/secret.git@v1.0'" in str(refused.value)


@pytest.mark.parametrize(
    ("requirement", "name"),
    [
        ("git+https://user:pass@host/some/Toy.git@feature/x", "Toy"),
        ("git+ssh://git@host/some/toy", "toy"),
        ("git+https://host/some/repository#subdirectory=a&egg=toy", "toy"),
        ("https://host/a/toy-1.0-py3-none-any.whl?x=1", "toy"),
        ("file:///some/toy/", "toy"),
        ("toy @ git+https://user:pass@host/other.git", "toy"),
        ("toy@https://host/other.whl", "toy"),
    ],
)
def test_the_name_of_a_requirement_with_a_url_is_that_of_the_project(requirement: str, name: str):
    assert name_of(requirement) == name
