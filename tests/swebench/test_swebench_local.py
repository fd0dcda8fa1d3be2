"""Patches that are tried in the sandbox: the verdicts of containers, kept in, and nothing left."""

from __future__ import annotations

import difflib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from servers import until
from swebench_rows import TEXT, TOY, real_rows

from envweave_gym.core.faults import InvalidArgument, NotAvailable
from envweave_gym.data.swebench_lite import Instance
from envweave_gym.data.toy_files import FILES
from envweave_gym.sandbox import levels
from envweave_gym.swebench.checkouts import Recipe
from envweave_gym.swebench.evaluation import Trial, baseline, evaluate
from envweave_gym.swebench.evaluation_scripts import official_script
from envweave_gym.swebench.local_evaluation import LocalWorkspace, open_workspace
from envweave_gym.swebench.workspace import WorkspaceLost

SOURCE = "toolbox/text.py"
HANGING = """\
import os, signal, sys, time

for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
while True:
    time.sleep(0.01)
"""
STUBBORN = (
    HANGING,
    "import os, time\nif os.fork() == 0:\n    os.setsid()\ntime.sleep(1000)",
    "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
    "import os, signal\nos.kill(-1, signal.SIGSTOP)",
)


@pytest.fixture(scope="module")
def cache() -> Iterator[str]:
    """A folder for checkouts that everybody can read."""
    folder = tempfile.mkdtemp(prefix="swebench-tests-")
    Path(folder).chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def opened(cache: str) -> Iterator[Callable[..., LocalWorkspace]]:
    """Opens workspaces, and closes them."""
    spaces: list[LocalWorkspace] = []

    def opens(instance: Instance = TEXT, **options: Any) -> LocalWorkspace:
        spaces.append(open_workspace(instance, **{"cache": cache, **options}))
        return spaces[-1]

    yield opens
    for one in spaces:
        one.close()


def tried(instance: Instance, diff: str, cache: str, timeout: float = 60, **options: Any) -> Any:
    trial = Trial(backend="local", timeout=timeout, at_once=8, options={"cache": cache, **options})
    return evaluate(instance, diff, trial)


def diff_to(text: str, path: str = SOURCE) -> str:
    """A diff that makes a file of the toy repository this text."""
    lines = [one.splitlines(keepends=True) for one in (FILES[path], text)]
    return f"diff --git a/{path} b/{path}\n" + "".join(difflib.unified_diff(*lines, f"a/{path}", f"b/{path}"))


class TestVerdicts:
    @pytest.mark.parametrize("instance", TOY, ids=lambda one: one.instance_id)
    def test_gold_patches_resolve_and_no_patch_does_not(self, instance: Instance, cache: str) -> None:
        found = tried(instance, instance.patch, cache)
        assert (found.applied, found.resolved, found.f2p, found.p2p) == (True, True, 1.0, 1.0), found
        nothing = baseline(instance, Trial(backend="local", options={"cache": cache}))
        assert (nothing.resolved, nothing.p2p, nothing.fault) == (False, 1.0, None)
        assert nothing.f2p < 1

    def test_a_patch_that_changes_nothing_that_matters_does_not_resolve(self, cache: str) -> None:
        found = tried(TEXT, diff_to(FILES[SOURCE] + "\n# looked at\n"), cache)
        assert (found.applied, found.resolved, found.p2p, found.fault) == (True, False, 1.0, None)

    def test_a_patch_that_breaks_the_module_keeps_nothing(self, cache: str) -> None:
        found = tried(TEXT, diff_to("this is no Python\n"), cache)
        assert (found.applied, found.resolved, found.f2p, found.fault) == (True, False, 0.0, None)

    @pytest.mark.parametrize(
        "diff", ["", "no diff at all", TEXT.patch.replace("\n-", "\n-what was never there ")]
    )
    def test_a_patch_that_does_not_apply_is_not_resolved(self, diff: str, cache: str) -> None:
        found = tried(TEXT, diff, cache)
        assert (found.applied, found.resolved, found.fault) == (False, False, None)
        assert found.problem or found.violations

    def test_a_patch_of_the_tests_is_refused(self, cache: str) -> None:
        name = next(name for name in FILES if name.startswith("tests/test_"))
        found = tried(TEXT, diff_to("", name), cache)
        assert (found.applied, found.resolved) == (False, False)
        assert found.violations

    def test_processes_of_a_patch_are_dead_two_seconds_after_the_timeout(self, cache: str) -> None:
        begun = time.monotonic()
        found = tried(TEXT, diff_to(HANGING), cache, timeout=1.0)
        assert (found.timed_out, found.resolved, found.fault) == (True, False, None)
        assert found.timings["tests"] < 1.0 + 2.0
        assert time.monotonic() - begun < 30

    def test_a_patch_that_prints_without_end_is_stopped(self, cache: str) -> None:
        found = tried(TEXT, diff_to("while True:\n    print('x' * 100_000)\n"), cache, timeout=50.0)
        assert (found.resolved, found.fault) == (False, None)

    def test_a_patch_that_kills_all_it_can_does_not_resolve(self, cache: str) -> None:
        found = tried(TEXT, diff_to("import os, signal\nos.kill(-1, signal.SIGKILL)\n"), cache)
        assert not found.resolved

    def test_the_same_with_bubblewrap_around(self, cache: str) -> None:
        if why := levels.why_missing("namespace"):
            pytest.skip(why)
        assert tried(TEXT, TEXT.patch, cache, isolation="namespace").resolved
        hung = tried(TEXT, diff_to(HANGING), cache, timeout=1.0, isolation="namespace")
        assert hung.timed_out
        assert hung.timings["tests"] < 1.0 + 2.0


class TestKeptIn:
    def test_there_is_no_network_and_no_file_of_this_machine(self, opened: Any, tmp_path: Path) -> None:
        space = opened()
        secret = tmp_path / "secret"
        secret.write_text("secret")
        for where in (secret, *tmp_path.parents[:-1]):
            where.chmod(where.stat().st_mode | 0o055)
        for refused in (
            "python -c 'import socket; socket.socket()'",
            f"cat {secret}",
            f"touch {tmp_path}/new",
            "touch $VIRTUAL_ENV/new",
            "ls /proc/1/fd",
        ):
            ran = space.run(refused, 20)
            assert ran.code not in (0, 127), (refused, ran)
        assert space.run("touch here && cat toolbox/__init__.py > ../scratch/copy", 20).code == 0

    def test_a_copy_is_its_own(self, opened: Any) -> None:
        first, second = opened(), opened()
        assert first.run("echo changed > README.md; git status --porcelain", 20).output == " M README.md\n"
        assert second.run("git status --porcelain; git log --oneline | wc -l", 20).output.split() == ["1"]
        assert opened().run("cat README.md", 20).output == FILES["README.md"]
        assert second.run(f"touch {first.testbed}/new", 20).code != 0, "one cannot write to another"

    def test_files_are_put_where_they_belong_whatever_programs_do(self, opened: Any, tmp_path: Path) -> None:
        space = opened()
        target = tmp_path / "target"
        target.write_text("as it was")
        space.run(f"ln -s {target} {space.scratch}/eval.sh", 20)
        space.write("eval.sh", b"new")
        assert target.read_text() == "as it was"
        assert space.run(f"cat {space.scratch}/eval.sh", 20).output == "new"
        space.run(f"mv {space.scratch} {space.scratch}.old; ln -s {tmp_path} {space.scratch}", 20)
        space.write("other", b"new")
        assert not (tmp_path / "other").exists()
        space.run(f"rm -rf {space.scratch}.old", 20)
        with pytest.raises(WorkspaceLost, match="other cannot be"):
            space.write("other", b"new")

    def test_a_level_that_is_not_there_is_demanded_in_vain(
        self, opened: Any, cache: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(
            InvalidArgument, match="isolation='process' does not keep patches in; there are 'l"
        ):
            opened(isolation="process")
        monkeypatch.setattr(levels, "why_missing", lambda level: "the kernel has none")
        with pytest.raises(NotAvailable, match=r"isolation='landlock' .*: the kernel has none"):
            opened()
        found = tried(TEXT, TEXT.patch, cache)
        assert found.fault is not None
        assert not found.resolved


class TestEnds:
    def test_a_command_tells_its_output_in_order_and_its_code(self, opened: Any) -> None:
        space = opened()
        ran = space.run("echo one; echo two >&2; echo three; pwd; exit 3", 20)
        assert (ran.output, ran.code) == (f"one\ntwo\nthree\n{space.testbed}\n", 3)
        assert space.run("kill -9 $$", 20).code == 128 + signal.SIGKILL

    @pytest.mark.parametrize("program", STUBBORN, ids=["signals", "session", "bomb", "stops"])
    def test_a_command_that_took_too_long_leaves_nothing_that_runs(self, program: str, opened: Any) -> None:
        space = opened(pids=100)
        space.write("program.py", program.encode())
        begun = time.monotonic()
        ran = space.run(f"echo begun; python {space.scratch}/program.py", 0.5)
        assert time.monotonic() - begun < 0.5 + 2
        assert (ran.output, ran.timed_out) == ("begun\n", True)
        until(lambda: not _working_in(Path(space.testbed)), 2)

    def test_a_place_is_still_there_after_a_command_that_took_too_long(self, opened: Any) -> None:
        space = opened()
        assert space.run("touch new; sleep 1000", 0.5).timed_out
        assert space.run("git status --porcelain", 20).output == "?? new\n"

    def test_a_closed_session_is_gone(self, opened: Any) -> None:
        space = opened()
        space.run("setsid sleep 1000 & true", 20)
        folder = Path(space.testbed).parent
        assert folder.is_dir()
        for _ in range(2):
            space.close()
        assert not folder.exists()
        with pytest.raises(WorkspaceLost, match="is closed; open another"):
            space.run("true", 1)

    def test_nothing_is_left_of_a_killed_owner(self, cache: str) -> None:
        script = (
            "from swebench_rows import TEXT\n"
            "from envweave_gym.swebench.local_evaluation import open_workspace\n"
            f"space = open_workspace(TEXT, cache={cache!r})\n"
            "print(space.testbed, flush=True)\n"
            "space.run('setsid sleep 1000 & touch begun; sleep 1000', 100)\n"
        )
        environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "support")}
        process = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environ
        )
        with process:
            assert process.stdout is not None
            testbed = Path(process.stdout.readline().strip())
            until((testbed / "begun").exists)
            process.kill()
        until(lambda: not testbed.parent.exists())
        until(lambda: not _working_in(testbed))


def _working_in(folder: Path) -> list[str]:
    """The processes that work in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            place = os.readlink(process / "cwd")
        except OSError:
            continue
        found += [process.name] if place.startswith(str(folder)) else []
    return found


class TestScripts:
    def test_lines_for_the_image_are_omitted(self, opened: Any) -> None:
        space = opened()
        script = space.adapt_script(official_script(TEXT))
        assert "conda" not in script
        assert "/testbed\n" not in script.replace(space.testbed, "")
        assert f"cd {space.testbed}\n" in script
        assert "python tests/runtests.py -rA" in script

    def test_of_all_real_scripts_the_tests_stay_and_nothing_of_the_image(self, opened: Any) -> None:
        space = opened()
        for row in real_rows():
            script = official_script(row)
            before, patch, after = script.partition(row.test_patch)
            assert patch
            reported = space.adapt_script(script)
            assert patch in reported, "the test patch stays as it is"
            lines = reported.replace(patch, "").splitlines()
            for line in lines:
                assert not line.startswith(("conda", "source", "python -m pip", "sed", "export")), line
            commands = [one for one in (before + after).splitlines() if one not in lines]
            kept = len((before + after).splitlines()) - len(commands)
            assert kept >= 10, row.instance_id


class TestCheckouts:
    def test_repositories_come_from_where_one_says(self, opened: Any, tmp_path: Path) -> None:
        source, base = repository(tmp_path / "tests" / "greet", {"greet.py": "WORD = 'hello'\n"})
        (source / "later.py").write_text("")
        git(source, "add", ".")
        git(source, "commit", "-q", "-m", "later")
        instance = instance_of(base)
        space = opened(instance, repos=f"{tmp_path}/{{repo}}")
        assert space.run("ls; git log --oneline | wc -l", 20).output.split() == ["greet.py", "1"]

    def test_an_image_that_cannot_be_pulled_is_a_fault_with_the_reason(
        self, cache: str, tmp_path: Path
    ) -> None:
        repository(tmp_path / "tests" / "greet", {"greet.py": ""})
        absent = instance_of("0" * 40)
        for repos in (f"{tmp_path}/nowhere/{{repo}}", f"{tmp_path}/{{repo}}"):
            found = tried(absent, TEXT.patch, cache, repos=repos)
            assert found.fault is not None
            assert "name with repos= where it is" in found.fault.message

    @pytest.mark.slow
    def test_packages_are_installed_and_the_repository_is_imported_from_the_copy(
        self, opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also where the host has a module path of its own, on which pip finds the package already."""
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "host"))
        with zipfile.ZipFile(wheel(tmp_path)) as package:
            package.extractall(tmp_path / "host")
        setup = "from setuptools import setup\nsetup(name='greet', version='1', package_dir={'': 'src'})\n"
        files = {"setup.py": setup, "src/greet.py": "WORD = 'hello'\n", "src/greet.egg-info/PKG-INFO": "old"}
        _, base = repository(tmp_path / "tests" / "greet", files)
        (tmp_path / "needs.txt").write_text(f"{wheel(tmp_path)}\n")
        options = {"repos": f"{tmp_path}/{{repo}}", "requirements": f"{tmp_path}/needs.txt"}
        space = opened(instance_of(base), **options)
        assert space.run("git status --porcelain --untracked-files=no", 20).output == ""
        reported = space.run(
            "echo \"WORD = 'patched'\" > src/greet.py; cd /; python -c '" + IMPORTS + "'", 30
        )
        assert reported.output == f"patched {space.testbed}/src/greet.py pinned\n"

    def test_requirements_and_interpreters_that_are_not_there_are_faults(
        self, cache: str, tmp_path: Path
    ) -> None:
        for options, why in (
            ({"requirements": f"{tmp_path}/{{instance_id}}.txt"}, f"there is no file {tmp_path}/toy__"),
            ({"python": "/bin/false"}, "its packages cannot be installed: false failed"),
            (
                {"python": "/nowhere/python"},
                "its packages cannot be installed: there is no /nowhere/python here",
            ),
        ):
            found = tried(TEXT, TEXT.patch, cache, **options)
            assert found.fault is not None
            assert why in found.fault.message

    def test_checkouts_are_kept_where_caches_are(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "getuid", lambda: 4711)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
        assert Recipe("python").folder == tmp_path / "own" / "envweave-swebench"
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        assert Recipe("python").folder == Path(tempfile.gettempdir(), "envweave-swebench-4711")

    def test_a_cache_that_is_not_ones_own_is_refused(self, opened: Any, tmp_path: Path) -> None:
        shared = tmp_path / "shared"
        shared.mkdir()
        shared.chmod(0o777)
        with pytest.raises(
            NotAvailable, match="is no folder that this user alone writes to; give another cache="
        ):
            opened(cache=str(shared))


IMPORTS = "import greet, pinned; print(greet.WORD, greet.__file__, pinned.__name__)"


def git(folder: Path, *arguments: str) -> str:
    who = {f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        env={**os.environ, **who},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def repository(folder: Path, files: dict[str, str]) -> tuple[Path, str]:
    """A repository with these files, and its commit."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q")
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder, git(folder, "rev-parse", "HEAD")


def instance_of(base: str) -> Instance:
    return msgspec.structs.replace(TEXT, instance_id="tests__greet-1", repo="tests/greet", base_commit=base)


def wheel(folder: Path) -> Path:
    """A package that can be installed without a network."""
    path = folder / "pinned-1.0-py3-none-any.whl"
    about = "pinned-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("pinned.py", "")
        file.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: pinned\nVersion: 1.0\n")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{about}/RECORD", "")
    return path
