"""``backend="subprocess"``: one private server for a process, which ends with it whichever way that ends."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote

import gymnasium
import psutil
import pytest
from servers import running_server, until

import envweave_gym as ew
from envweave_gym.net.framed_socket import connect
from envweave_gym.providers.subprocess import PrivateServer, private_server
from envweave_gym.remote.env import RemoteEnv
from envweave_gym.wire.messages import Hello, Refused, encode, read_reply

COUNTER = "envweave/Counter-v0"

OWNER = """
import sys, time
import envweave_gym as ew
from envweave_gym.providers.subprocess import private_server
env = ew.make("envweave/Counter-v0", backend="subprocess")
env.reset(seed=1)
server = private_server()
print(server.pid, server.url, flush=True)
sys.stdin.readline()
{then}
"""


def address_of(url: str) -> str:
    """The address of the socket that a URL names."""
    return unquote(url.removeprefix("unix://"))


def soon() -> float:
    return time.monotonic() + 10


def is_refused(url: str) -> bool:
    """Whether nothing listens any more."""
    try:
        connect(address_of(url), soon()).close()
    except ConnectionRefusedError:
        return True
    return False


def family(pid: int) -> list[psutil.Process]:
    """A server's process and those it has started."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def runs(process: psutil.Process) -> bool:
    """Whether it is there, and no mere zombie."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


STARTED_BY_A_THREAD = OWNER.replace(
    "env.reset(seed=1)\n",
    "import threading\nthread = threading.Thread(target=env.reset)\nthread.start()\nthread.join()\n",
)


def owner(then: str, program: str = OWNER) -> subprocess.Popen[str]:
    code = program.format(then=textwrap.dedent(then))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", code], text=True, **pipes)


FORKS = """
import gc, os, sys, warnings
import envweave_gym as ew
env = ew.make("envweave/Counter-v0", backend="subprocess")
env.reset(seed=1)
child = os.fork()
if child == 0:
    env.reset(seed=2)
    gc.collect()
    sys.stderr.flush()
    os._exit(0)
os.waitpid(child, 0)
env.close()
"""


@pytest.mark.filterwarnings("ignore")
def test_a_forked_process_that_plays_on_warns_of_no_server():
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", FORKS], capture_output=True, text=True, check=True
    )
    assert "ResourceWarning" not in done.stderr


def test_all_environments_of_a_process_share_it():
    envs = [ew.make(COUNTER, backend="subprocess") for _ in range(3)]
    for env in envs:
        env.reset(seed=1)
    assert len({env.unwrapped._served.address.url for env in envs}) == 1
    assert private_server().pid is not None


def test_a_child_that_outlives_the_owner_gets_a_server_of_its_own():
    then = """
    import os
    if os.fork():
        os._exit(0)
    while os.getppid() == {parent}:
        time.sleep(0.01)
    print(ew.make("envweave/Counter-v0", backend="subprocess").reset(seed=1)[0]["count"], flush=True)
    """
    program = OWNER.replace("sys.stdin.readline()", "import os\nparent = os.getpid()")
    process = owner(then.replace("{parent}", "parent"), program)
    assert process.communicate(timeout=60)[0].splitlines()[1:] == ["0"]


def test_a_server_refuses_clients_without_its_token():
    private_server().ensure()
    for token in ("", "another"):
        with closing(connect(address_of(private_server().url), soon())) as peer:
            peer.send(encode(Hello(token)), soon())
            refused = read_reply(peer.receive(soon()))
            assert isinstance(refused, Refused)
            assert refused.kind == "Unauthorized"


@pytest.mark.parametrize(
    ("how", "then"),
    [
        ("returns", ""),
        ("raises", "raise SystemExit(3)"),
        ("is killed", "time.sleep(60)"),
        (
            "is killed with a child of its own",
            "import os\nif os.fork() == 0:\n    time.sleep(3)\ntime.sleep(60)",
        ),
    ],
)
def test_it_ends_when_its_owner(how: str, then: str):
    process = owner(then)
    assert process.stdout is not None
    assert process.stdin is not None
    pid, url = process.stdout.readline().split()
    servers = family(int(pid))
    assert len(servers) >= 2
    process.stdin.write("\n")
    process.stdin.close()
    if "killed" in how:
        process.send_signal(signal.SIGKILL)
    process.wait(20)
    process.stdout.close()
    until(lambda: not any(map(runs, servers)))
    until(lambda: is_refused(url))  # a child of the owner closes its copy of the socket soon after the fork


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux wakes it")
@pytest.mark.parametrize("thread", ["main", "one that ended long ago"])
def test_it_ends_with_its_owner_although_it_was_stopped(thread: str):
    process = owner("time.sleep(60)", STARTED_BY_A_THREAD if thread != "main" else OWNER)
    assert process.stdout is not None
    assert process.stdin is not None
    pid, url = process.stdout.readline().split()
    connect(address_of(url), soon()).close()
    servers = family(int(pid))
    for one in servers:
        one.suspend()
    process.kill()
    process.communicate()
    try:
        until(lambda: not any(map(runs, servers)))
    finally:
        for one in filter(runs, servers):
            one.kill()


def test_one_that_died_is_started_again_behind_the_same_address():
    server = PrivateServer()
    env = RemoteEnv(COUNTER, server.url)
    env.reset(seed=1)
    first = server.pid
    assert first is not None
    os.killpg(first, signal.SIGKILL)
    until(lambda: server.pid is None)
    _, reward, _, truncated, info = env.step({"delta": 1})
    assert (reward, truncated, info["fault"].kind) == (0.0, True, ew.FaultKind.LOST)
    env.reset(seed=1)
    assert env.step({"delta": 1})[0]["count"] == RemoteEnv(COUNTER, server.url).reset(seed=1)[0]["count"] + 1
    assert server.pid not in (None, first)
    env.close()
    server.stop()


def test_who_waits_for_a_server_that_dies_is_not_left_in_its_queue():
    server = PrivateServer().wait()
    env = RemoteEnv(COUNTER, server.url)
    env.reset(seed=1)
    assert server.pid is not None
    os.killpg(server.pid, signal.SIGSTOP)
    with closing(connect(address_of(server.url), soon())) as peer:
        os.killpg(server.pid, signal.SIGKILL)
        with pytest.raises(ConnectionError):
            peer.receive(soon())
    started = time.monotonic()
    env.close()
    assert time.monotonic() - started < 1
    server.stop()


def test_programs_that_an_environment_has_started_end_with_a_server_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "starting.py").write_text(
        "import gymnasium, os\nfrom envweave_gym.envs.toy.counter import CounterEnv\n"
        "class Starting(CounterEnv):\n"
        "    def step(self, action):\n"
        "        os.system('sleep 60 & echo $! > sleeping; ls -l /proc/self/fd > open')\n"
        "        return super().step(action)\n"
        "gymnasium.register('own/Starting-v0', entry_point='starting:Starting')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    server = PrivateServer()
    env = RemoteEnv("starting:own/Starting-v0", server.url)
    env.reset(seed=1)
    assert "fault" not in env.step({"delta": 1})[4]
    assert "socket:" not in (tmp_path / "open").read_text(), "the address stays free for the next server"
    sleeping = psutil.Process(int((tmp_path / "sleeping").read_text()))
    assert server.pid is not None
    worker = psutil.Process(server.pid).children()[0]
    os.kill(server.pid, signal.SIGKILL)
    until(lambda: not runs(worker))
    assert env.step({"delta": 1})[4]["fault"].kind is ew.FaultKind.LOST
    server.stop()
    until(lambda: not runs(sleeping))
    env.close()


def test_a_server_that_has_not_read_its_token_ends_with_an_error_that_says_with_which_code(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    monkeypatch.setattr(sys, "path", [*sys.path, *(f"/nowhere/{number:0200}" for number in range(1000))])
    server = PrivateServer()
    server.ensure()
    until(lambda: server.pid is None)
    with pytest.raises(ew.NotAvailable, match="ended with exit code 1; its error is on stderr"):
        server.ensure()
    server.stop()


def test_stopping_leaves_no_process_and_no_port():
    server = PrivateServer()
    RemoteEnv(COUNTER, server.url).reset(seed=1)
    assert server.pid is not None
    servers = family(server.pid)
    server.stop()
    assert server.pid is None
    until(lambda: not any(one.is_running() for one in servers))


def test_one_that_rests_leaves_no_process_and_comes_back_when_it_is_asked():
    server = PrivateServer()
    env = RemoteEnv(COUNTER, server.url)
    begun = env.reset(seed=1)[0]
    assert server.pid is not None
    servers = family(server.pid)
    env.close()
    server.rest()
    server.rest()
    until(lambda: not any(map(runs, servers)))
    assert env.reset(seed=1)[0] == begun
    assert server.starts == 2
    env.close()
    server.stop()
    server.ensure()
    assert (server.pid, server.starts) == (None, 2)


def test_one_that_ends_by_itself_says_with_which_code_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "leaving.py").write_text(
        "import gymnasium, os, sys, time\nfrom envweave_gym.envs.toy.counter import CounterEnv\n"
        "class Leaving(CounterEnv):\n"
        "    def step(self, action):\n"
        "        print('I go', file=sys.stderr, flush=True)\n"
        "        os.kill(os.getppid(), 9)\n"
        "        time.sleep(60)\n"
        "gymnasium.register('own/Leaving-v0', entry_point='leaving:Leaving')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    server = PrivateServer()
    env = RemoteEnv("leaving:own/Leaving-v0", server.url)
    env.reset(seed=1)
    fault = env.step({"delta": 1})[4]["fault"]
    assert "the server of this session has ended: exit code -9, and it last said: I go" in fault.message
    assert "fault" not in env.reset(seed=1)[1]
    assert server.starts == 2
    env.close()
    server.stop()


def test_one_that_stands_still_is_stopped_all_the_same(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("envweave_gym.providers.subprocess._GRACE_S", 0.2)
    server = PrivateServer().wait()
    assert server.pid is not None
    servers = family(server.pid)
    os.killpg(server.pid, signal.SIGSTOP)
    server.stop()
    until(lambda: not any(map(runs, servers)))


@pytest.mark.parametrize("module", ["flask", "gunicorn", "prometheus_client"])
def test_it_needs_no_package_of_the_extra_server(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_module(tmp_path, module, "raise ImportError('it is not installed')")
    monkeypatch.syspath_prepend(tmp_path)
    server = PrivateServer()
    env = RemoteEnv(COUNTER, server.url)
    env.reset(seed=1)
    assert env.step({"delta": 1})[4]["seq"] > 0
    env.close()
    server.stop()


def children_of(server: PrivateServer) -> list[psutil.Process]:
    """The worker of a server, in a list that is empty while there is none."""
    return psutil.Process(server.pid).children()


def test_a_worker_that_dies_is_replaced_also_for_a_forked_child_of_the_owner():
    server = PrivateServer().wait()
    pid, (worker,) = server.pid, children_of(server)
    env = RemoteEnv(COUNTER, server.url)
    env.reset(seed=1)
    child = os.fork()
    if child == 0:
        own = RemoteEnv(COUNTER, server.url, max_steps=-1)
        own.reset(seed=1)
        worker.kill()
        lost = own.step({"delta": 1})[4]["fault"].kind is ew.FaultKind.LOST
        own.reset(seed=1)
        os._exit(0 if lost and "fault" not in own.step({"delta": 1})[4] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    fault = env.step({"delta": 1})[4]["fault"]
    assert "or ended with the process of this server that had it: it ended with exit code -9" in fault.message
    assert (server.pid, server.starts) == (pid, 1)
    env.close()
    server.stop()


def test_sigterm_lets_the_call_under_way_finish_and_the_address_stays():
    server = PrivateServer().wait()
    env = RemoteEnv("remote_worlds:tests/Trouble-v0", server.url, nap=1.0)
    env.reset(seed=1)
    pid = server.pid
    assert pid is not None
    threading.Timer(0.3, os.kill, (pid, signal.SIGTERM)).start()
    assert "fault" not in env.step(2)[4]
    until(lambda: server.pid is None)
    assert env.step(0)[4]["fault"].kind is ew.FaultKind.LOST
    assert "fault" not in env.reset(seed=1)[1]
    assert server.starts == 2
    env.close()
    server.stop()


def test_an_environment_of_the_owners_own_modules_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "own_world.py").write_text(
        "import gymnasium\nfrom envweave_gym.envs.toy.counter import CounterEnv\n"
        "gymnasium.register('own/World-v0', entry_point='own_world:CounterEnv')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    server = PrivateServer()
    env = RemoteEnv("own_world:own/World-v0", server.url, target=3)
    assert env.reset(seed=1)[0].keys() == {"count"}
    server.stop()


@pytest.fixture
def own_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``backend="subprocess"`` starts a server of the test's own, which gets the import paths of the test."""
    monkeypatch.setattr("envweave_gym.providers.subprocess._server", None)
    yield
    private_server().stop()
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


def write_module(folder: Path, name: str, *lines: str) -> None:
    """A module that whoever has ``folder`` among its import paths can import."""
    (folder / f"{name}.py").write_text("\n".join(lines) + "\n")


OTHERS = 'gymnasium.register("other/N{}-v0", entry_point="gymnasium.envs.toy_text:TaxiEnv")'
WHO_REGISTERS = {
    "loop": 'for n in (3, 4):\n    gymnasium.register(f"own/Size{n}-v0", entry_point="own_bodies:Body")',
    "upstream": 'gymnasium.register("own/Size4-v0", entry_point="gymnasium.envs.toy_text:TaxiEnv")',
    "lambda": 'gymnasium.register("own/Size4-v0", entry_point=lambda: __import__("own_bodies").Body())',
}


@pytest.mark.usefixtures("registries", "own_server")
@pytest.mark.parametrize("how", WHO_REGISTERS)
def test_an_id_that_an_import_of_the_caller_registered_is_known_there_too(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(tmp_path)
    write_module(tmp_path, "own_bodies", "from envweave_gym.envs.toy.counter import CounterEnv as Body")
    for number in range(20):  # more modules that register than a name has room for
        write_module(tmp_path, f"own_other{number}", "import gymnasium", OTHERS.format(number))
        importlib.import_module(f"own_other{number}")
    write_module(tmp_path, "own_names", "import gymnasium", WHO_REGISTERS[how])
    importlib.import_module("own_names")
    env = ew.make("own/Size4-v0", backend="subprocess")
    env.reset(seed=1)
    if how == "loop":
        private_server().rest()  # a server that is started again knows the ID as well
    assert env.reset(seed=1)[1]["seq"] >= 0
    assert str(env).startswith("<RemoteEnv<own/Size4-v0 at")
    vector = ew.make("own/Size4-v0", num_envs=2, backend="subprocess")
    assert vector.reset(seed=1)[1]["seq"].shape == (2,)


@pytest.mark.usefixtures("registries", "own_server")
def test_an_id_that_no_import_registers_is_refused_with_what_was_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(tmp_path)
    write_module(tmp_path, "own_bodies", "raise RuntimeError('no display')")
    gymnasium.register("own/Alone-v0", entry_point="own_bodies:Body")
    with pytest.raises(ew.UnknownEnvironment, match=r"own/Alone-v0.*own_bodies.*no display") as caught:
        ew.make("own/Alone-v0", backend="subprocess")
    assert "module:own/Alone-v0" in str(caught.value)


@pytest.mark.usefixtures("registries", "own_server")
@pytest.mark.parametrize(
    ("name", "near"), [("own/Lonesome-v5", "own/Lonesomee-v5"), ("tictactoe_v3", "classic/tictactoe-v3")]
)
def test_a_mistyped_id_is_answered_with_the_nearest_names_as_in_process(
    name: str, near: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(tmp_path)
    register = f'gymnasium.register("{near}", entry_point="gymnasium.envs.toy_text:TaxiEnv")'
    write_module(tmp_path, "own_names", "import gymnasium", register)
    importlib.import_module("own_names")
    reported: list[str] = []
    for backend in ("inproc", "subprocess"):
        with pytest.raises(ew.UnknownEnvironment, match=near) as caught:
            ew.make(name, backend=backend)
        reported.append(str(caught.value))
    assert reported[0] == reported[1]


@pytest.mark.usefixtures("registries", "own_server")
def test_the_error_of_a_constructor_names_the_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(tmp_path)
    body = "    def __init__(self):\n        raise KeyError('hub')"
    write_module(tmp_path, "own_bodies", "import gymnasium", "class Body(gymnasium.Env):", body)
    write_module(
        tmp_path, "own_names", "import gymnasium", "gymnasium.register('own/Bad-v0', 'own_bodies:Body')"
    )
    importlib.import_module("own_names")
    with pytest.raises(KeyError) as caught:
        ew.make("own/Bad-v0", backend="subprocess")
    assert str(caught.value).startswith("own/Bad-v0 cannot be made: KeyError")


def test_the_module_of_a_name_need_not_be_here_where_a_server_makes_it():
    with running_server("remote_worlds:tests/Keeper-v0", token=None) as server:
        for name in ("elsewhere_only:tests/Keeper-v0", "elsewhere_only:tests/Keeper"):
            env = ew.make(name, backend=server.url)
            assert env.reset(seed=1)[1]["seq"] >= 0
            env.close()
        with pytest.raises(ew.UnknownEnvironment, match="'antigravity:x/Y-v0' is not served here"):
            ew.make("antigravity:x/Y-v0", backend=server.url)
