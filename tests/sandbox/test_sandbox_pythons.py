"""The inside of the sandbox runs on every Python from 3.6 on; an older one is refused by its version."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandboxes import needs

from envweave_gym.core.faults import NotAvailable
from envweave_gym.sandbox import Names, Sandbox, Setup, levels
from envweave_gym.tools import ToolRegistry

VERSIONS = [f"3.{minor}" for minor in range(6, 15)]
FOLDERS = "export ENVWEAVE_PYTHONS=FOLDERS (with python3.6 and others, separated by colons)"


def interpreter(version: str) -> str:
    """A Python of this version; none is a skip, with CI set too."""
    for folder in folders():
        python = os.path.join(folder, f"python{version}")
        if os.access(python, os.X_OK) and version_of(python) == version:
            return python
    pytest.skip(f"there is no Python {version}; to run it: {FOLDERS}")


def folders() -> Iterator[str]:
    """Where interpreters may be: what is named, those of pyenv, and the programs of the system."""
    yield from filter(None, os.environ.get("ENVWEAVE_PYTHONS", "").split(os.pathsep))
    root = os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")
    yield from map(str, sorted(Path(root).glob("versions/*/bin")))
    yield from os.environ.get("PATH", os.defpath).split(os.pathsep)


def version_of(python: str) -> str:
    """What an interpreter says; empty where it does not run, as a shim of pyenv for none."""
    asked = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    return subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False).stdout.strip()


@pytest.mark.parametrize("version", VERSIONS)
def test_episodes_run_on_this_python(version: str) -> None:
    needs("landlock")
    python = interpreter(version)
    sandbox = Sandbox(Setup(python=python), ready=0)
    try:
        session = sandbox.open()
        session.name(Names(values={"limit": 3}), ToolRegistry({"double": lambda x: 2 * x}))
        assert session.run("import sys; '%d.%d' % sys.version_info[:2]").value == version
        done = session.run("x = [double(n) for n in range(limit)]\nprint('done')\nx")
        assert (done.success, done.stdout, done.value) == (True, "done\n", [0, 2, 4])
        assert [session.run(code).value for code in ("1;  # no value", "1  # a value;", "'''\n;'''")] == [
            None,
            1,
            "\n;",
        ]
        failed = session.run("def f(): return 1 / 0\nf()")
        assert failed.error_type == "ZeroDivisionError"
        assert "zygote.py" not in failed.error
        assert session.run("while True: pass", timeout=0.2).error_type == "StepTimeout"
        assert session.run("y = []\nwhile True: y.append(bytes(10 ** 8))").error_type == "MemoryError"
        assert session.run("'\\ud800\\u20ac'").value == "?\u20ac"
        assert session.run("open('/etc/passwd')").error_type == "PermissionError"
        branch = session.fork()
        assert branch.run("x.append(6); x").value == [0, 2, 4, 6]
        assert session.run("import os; os._exit(1)", checkpoint=True).restored
        assert session.run("x").value == [0, 2, 4]
        branch.close()
        session.close()
    finally:
        sandbox.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_namespaces_and_commands_run_on_this_python(version: str) -> None:
    needs("namespace")
    python = interpreter(version)
    if os.getuid() == 0 and not levels.is_for_all(python):
        pytest.skip(f"{python} is root's alone, which commands are not; to run it: {FOLDERS}")
    sandbox = Sandbox(Setup(python=python, profile="shell", isolation="namespace"), ready=0)
    session = sandbox.open()
    session.name(Names())
    assert session.shell("echo out; exit 3").value == 3
    session.close()
    sandbox.close()


def test_a_python_that_is_too_old_is_refused(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n[ \"$1\" = -c ] && echo 3.5 || { echo 'Unknown option: -I' >&2; exit 2; }\n"
    )
    python.chmod(0o755)
    with pytest.raises(NotAvailable, match=r"is Python 3\.5, and the sandbox runs on Python 3\.6 or newer"):
        Sandbox(Setup(python=str(python)))


def test_a_module_is_loaded_without_its_annotations(tmp_path: Path) -> None:
    """As Python 3.6 loads those of the inside; any Python can."""
    package = tmp_path / "bare"
    package.mkdir()
    (package / "__init__.py").write_text("")
    source = (
        "from __future__ import annotations\nx: no.such[1] = 2\ny: no\n"
        "class A:\n    z: no\n    def f(self, a: no, *b: no, c: no = 3, **d: no) -> no | None:\n"
        "        e: no = a + c\n        return e\n"
    )
    (package / "module.py").write_text(source)
    inside = Path(levels.__file__).parent
    program = (
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(inside)!r}];"
        "from inside import strip_annotations\n"
        "sys.meta_path.insert(0, strip_annotations.Finder('bare')); import bare.module as m\n"
        "assert (m.x, m.A().f(1)) == (2, 4), m.x\n"
        "assert not m.A.f.__annotations__ and not getattr(m, '__annotations__', {})"
    )
    subprocess.run([sys.executable, "-I", "-c", program], check=True, timeout=60)
