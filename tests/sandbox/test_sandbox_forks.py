"""Episodes that are forked: what branches share, which is nothing, and what is refused."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from absent import absent
from sandboxes import WORKER, needs, readable_python, stands_still
from servers import until

from envweave_gym.core.faults import NotAvailable
from envweave_gym.sandbox import Names, Sandbox, Session, Setup, Variable, folders
from envweave_gym.sandbox.inside.syscall_numbers import number
from envweave_gym.sandbox.worker_process import WorkerDied
from envweave_gym.tools import ToolRegistry


@pytest.fixture
def session(sandbox: Sandbox) -> Iterator[Session]:
    opened = sandbox.open()
    opened.name(Names(), ToolRegistry({"twice": lambda x: 2 * x}))
    opened.run("x = [1]\nopen('a', 'w').write('one')")
    yield opened
    opened.close()


def test_branches_go_on_by_themselves(session: Session) -> None:
    branches = [session.fork() for _ in range(3)]
    for n, branch in enumerate(branches):
        assert branch.run(f"x.append(twice({n}))\nx").value == [1, 2 * n]
    assert session.run("x").value == [1]
    for branch in branches:
        branch.close()


def test_branches_draw_differently(session: Session) -> None:
    session.run("import random")
    one, two = session.fork(), session.fork()
    assert one.run("random.random()").value != two.run("random.random()").value
    one.close()
    two.close()


def test_branches_have_files_of_their_own_and_see_no_others(session: Session) -> None:
    session.run(
        "import os; os.makedirs('d/e'); open('d/e/f', 'w').write('deep'); os.symlink('/etc/passwd', 'l')"
    )
    one, two = session.fork(), session.fork()
    found = one.run("import os; open('d/e/f').read(), os.readlink('l'), sorted(os.listdir())").value
    assert found == ["deep", "/etc/passwd", ["a", "d", "l"]]
    one.run("open('a', 'w').write('changed'); open('new', 'w')")
    for other in (session, two):
        assert other.run("open('a').read(), sorted(os.listdir())").value == ["one", ["a", "d", "l"]]
        assert one.run(f"open({other.folder + '/a'!r}).read()").error_type == "PermissionError"
    for each in (session, one, two):
        assert each.run("os.listdir('..')").error_type == "PermissionError"
    one.close()
    two.close()


def test_a_branch_outlives_what_it_was_forked_from(sandbox: Sandbox) -> None:
    session = sandbox.open()
    session.name(Names())
    session.run("x = 1; open('a', 'w').write('one')")
    branch = session.fork()
    session.close()
    again = branch.fork()
    branch.close()
    assert again.run("x, open('a').read(), open('b', 'w').write('two')").value == [1, "one", 3]
    again.close()
    assert not Path(again.folder).exists()


def test_forks_nest_to_a_depth_that_the_error_names(session: Session) -> None:
    chain = [session]
    try:
        with pytest.raises(NotAvailable, match="a fork of a fork"):
            _lengthen(chain)
        assert len(chain) > 8
        for n, each in enumerate(chain):
            assert each.run(f"open('a', 'w').write('{n}'); open('a').read()").value == str(n)
        assert chain[-1].run("x").value == [1]
    finally:
        for each in chain[1:]:
            each.close()


def _lengthen(chain: list[Session]) -> None:
    while len(chain) < 40:
        chain.append(chain[-1].fork())


def test_sessions_of_one_family_may_be_forked_in_several_threads(session: Session) -> None:
    branches = [session.fork() for _ in range(4)]
    found: list[int] = []

    def work(branch: Session) -> None:
        for n in range(5):
            again = branch.fork()
            assert branch.run("import os; os.fork()").error_type == "PermissionError"
            found.append(again.run(f"x.append({n})\nx[-1]").value)
            again.close()

    threads = [threading.Thread(target=work, args=(branch,)) for branch in branches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted([*range(5)] * 4)
    for branch in branches:
        branch.close()


def test_while_a_thread_goes_on_a_fork_is_refused(session: Session) -> None:
    session.run("import threading; e = threading.Event(); t = threading.Thread(target=e.wait); t.start()")
    with pytest.raises(NotAvailable, match="a thread of the program"):
        session.fork()
    session.run("e.set(); t.join()")
    session.fork().close()


def test_a_fork_of_its_own_is_refused_before_and_after(session: Session) -> None:
    for _ in range(2):
        assert session.run("import os; os.fork()").error_type == "PermissionError"
        session.fork().close()


def test_a_program_that_forks_more_than_it_should_gains_nothing(sandbox: Sandbox) -> None:
    session = sandbox.open()
    session.name(Names())
    code = (
        "import os, time\nfork = os.fork\ndef evil():\n  if fork() == 0:\n    fork(); fork()\n"
        "    time.sleep(60)\n  return 0\nos.fork = evil"
    )
    session.run(code)
    processes = _processes_in(session)
    with suppress(NotAvailable, WorkerDied):
        session.fork().close()
    session.close()
    until(lambda: not processes())


EVIL = {
    "its child stays": "pid = fork()\n  if pid == 0: stay()",
    "its child stays, and forks the copy": "pid = fork()\n  if pid == 0:\n    fork()\n    stay()",
    "its child leaves one to it": (
        "prctl(36, 1)\n  pid = fork()\n  if pid == 0:\n    if fork(): os._exit(0)\n    stay()"
    ),
    "its child is none": "pid = syscall(CLONE, 0x8011, 0, 0, 0, 0)\n  if pid == 0: stay()",
}


@pytest.mark.parametrize("evil", EVIL)
@pytest.mark.parametrize("way", ["fork", "checkpoint"])
def test_a_permission_to_fork_gives_a_program_no_process(sandbox: Sandbox, evil: str, way: str) -> None:
    """Neither a child of its own nor one that its parent has, which would go on between steps."""
    session = sandbox.open()
    session.name(Names())
    code = (
        f"{WORKER}import ctypes, os\n"
        "libc = ctypes.CDLL(None); fork, prctl, syscall = os.fork, libc.prctl, libc.syscall\n"
        "def stay():\n  os.closerange(0, 99)\n  while True: pass\n"
        "def fork_(_):\n  worker.channel.send(dict(ev='ready'))\n"
        "  fds = worker.channel.receive_descriptors(3)\n"
        f"  {EVIL[evil].replace('CLONE', str(number('clone')))}\n"
        "  for fd in fds: os.close(fd)\n  worker.channel.send(dict(ev='forked'))\n"
        "worker._commands['fork'] = fork_"
    )
    assert session.run(code).success
    own, found = {str(session.process.pid)}, _processes_in(session)
    assert set(found()) == own
    for _ in range(2):
        with suppress(NotAvailable, WorkerDied):
            session.run("1", checkpoint=True) if way == "checkpoint" else session.fork()
        until(lambda: set(found()) <= own)
    session.close()


def test_a_step_is_not_run_where_its_copy_was_an_occasion_to_fork_more(sandbox: Sandbox) -> None:
    session = sandbox.open()
    session.name(Names())
    session.run(
        "import os, time\nfork = os.fork\ndef evil():\n  fork() or time.sleep(60)\n"
        "  raise OSError(1, 'no')\nos.fork = evil"
    )
    done = session.run("print('run')", checkpoint=True)
    assert (done.error_type, done.state_lost, done.stdout) == ("WorkerDied", True, "")
    assert "it was not copied before: was killed, because it forked" in done.error
    session.close()


def test_a_copy_gives_no_descriptor_that_forks_are_asked_of() -> None:
    needs("landlock")
    sandbox = Sandbox(Setup(profile="shell", python=readable_python() or absent("no interpreter for all")))
    session = sandbox.open()
    session.name(Names())
    code = (
        f"{WORKER}import os, sys\nchannel = sys.modules[type(worker.channel).__module__].Channel\n"
        "def send(ch, m, send=channel.send):\n"
        "  ch.send_hello(m, [os.pipe()[0]]) if m['ev'] == 'hello' else send(ch, m)\nchannel.send = send"
    )
    assert session.run(code).success
    branch = session.fork()
    assert branch.process.fork_gate is None
    assert branch.run("import subprocess; subprocess.run(['true']).returncode").value == 0
    for each in (branch, session, sandbox):
        each.close()


def test_a_branch_stands_still_until_its_first_step(session: Session) -> None:
    session.run(
        "import os, threading, time\ndef f():\n  while True: pass\n"
        "os.register_at_fork(after_in_child=lambda: threading.Thread(target=f, daemon=True).start())"
    )
    branch = session.fork()
    stands_still(branch)
    assert branch.run("x").value == [1]
    branch.close()


def test_a_hello_from_another_process_than_the_copy_is_refused(session: Session) -> None:
    code = WORKER + (
        "def fork(_):\n  worker.channel.send(dict(ev='ready'))\n"
        "  fds = worker.channel.receive_descriptors(3)\n"
        "  import json, os, struct\n  data = json.dumps(dict(ev='hello', layers=[])).encode()\n"
        "  os.write(fds[0], struct.pack('!I', len(data)) + data)\n"
        "  worker.channel.send(dict(ev='forked'))\nworker._commands['fork'] = fork"
    )
    session.run(code)
    with pytest.raises(NotAvailable, match="its copy was no child of the zygote"):
        session.fork()


def _processes_in(session: Session) -> Callable[[], list[str]]:
    """Gives the processes in the folder of a session."""

    def found() -> list[str]:
        there: list[str] = []
        for entry in os.scandir("/proc"):
            try:
                if entry.name.isdecimal() and os.readlink(f"{entry.path}/cwd").startswith(session.folder):
                    there.append(entry.name)
            except OSError:
                continue
        return there

    return found


@pytest.mark.parametrize(
    "fill",
    [
        "for n in range(30): open(f'f{n}', 'wb').truncate(60 << 20)",
        "for n in range(20100): open(f'f{n}', 'w').close()",
        "import os\nfor n in range(200): os.mkdir('d'); os.chdir('d')",
    ],
)
def test_a_folder_that_is_too_much_is_not_copied(session: Session, fill: str) -> None:
    session.run(fill, timeout=20)
    with pytest.raises(NotAvailable, match="cannot be copied"):
        session.fork()
    assert session.run("x").value == [1]


def test_nothing_but_files_folders_and_links_is_copied(tmp_path: Path) -> None:
    folder = Path(folders.episode_folder(str(tmp_path)))
    (folder / "file").write_text("x")
    (folder / "outside").symlink_to("/etc/passwd")
    os.mkfifo(folder / "pipe")
    copy = Path(folders.copied(str(folder)))
    assert sorted(one.name for one in copy.iterdir()) == ["file", "outside"]
    assert (copy / "outside").is_symlink()
    folders.remove(str(copy))
    folders.remove(str(folder))


def test_files_are_copied_whole_by_a_disk_that_takes_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folders.episode_folder(str(tmp_path))
    Path(folder, "file").write_text("text")
    write = os.write
    monkeypatch.setattr(os, "write", lambda target, data: write(target, data[:1]))
    copy = folders.copied(folder)
    assert Path(copy, "file").read_text() == "text"
    folders.remove(copy)
    folders.remove(folder)


def test_every_folder_can_be_removed(tmp_path: Path) -> None:
    root, target = tmp_path / "envweave-sandbox-x", tmp_path / "target"
    root.mkdir()
    target.mkdir()
    (target / "kept").write_text("x")
    folder = Path(folders.episode_folder(str(root)))
    (folder / "link").symlink_to(target)
    (folder / "closed").mkdir(0o300)
    (folder / "closed" / "file").write_text("x")
    (folder / "none").mkdir(0)
    here = os.getcwd()
    os.chdir(folder)
    for _ in range(1500):  # deeper than Python recurses and than a path may be long
        os.mkdir("d" * 10)
        os.chdir("d" * 10)
    os.chdir(here)
    folders.remove(str(folder))
    assert list(root.iterdir()) == []
    assert (target / "kept").read_text() == "x"


def test_the_variables_of_a_branch_are_reported_after_a_loss(session: Session) -> None:
    session.run("y = 2")
    branch = session.fork()
    done = branch.run("import os; os._exit(1)", checkpoint=True)
    assert done.variables == {"x": Variable("list"), "y": Variable("int")}
    branch.close()


def test_files_beside_the_folder_are_removed_with_the_last_branch(tmp_path: Path) -> None:
    """Who is the same user as the host may write there."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "other").mkdir()
    folder = folders.episode_folder(str(root))
    copy = folders.copied(folder)
    (Path(folder).parent / "stray").write_text("x")
    (Path(copy).parent / "stray").mkdir()
    folders.remove(folder)
    assert Path(copy).is_dir()
    folders.remove(copy)
    assert [one.name for one in root.iterdir()] == ["other"]
