"""Hostile programs, and how they must end; as a program of its own, for other users and for containers."""

# ruff: noqa: E501 - one program a line

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from envweave_gym.core.faults import NotAvailable
from envweave_gym.sandbox import Execution, Names, Sandbox, Session, Setup, levels
from envweave_gym.sandbox.inside import syscall_numbers
from envweave_gym.sandbox.worker_copies import has_stopped_threads
from envweave_gym.tools import ToolRegistry

Snippet = dict[str, Any]
SECRET = "CANARY-SECRET"
LONGEST = 60.0
"""So many seconds any of them may take, with its end, on a machine that has much else to do."""
WORKER = (
    "import sys\nf = sys._getframe()\nwhile f is not None and 'message' not in f.f_locals: f = f.f_back\n"
    "worker, m = f.f_locals['self'], f.f_locals['message']\n"
)
"""How a program finds the worker that it runs in."""
FRAME = (
    "import os, struct\n"
    "def send(text): data = text.encode(); os.write(3, struct.pack('!I', len(data)) + data)\n"
)

CALL = (
    "import ctypes\nc = ctypes.CDLL(None, use_errno=True); c.syscall.restype = ctypes.c_long\n"
    f"numbers = { {name: syscall_numbers.number(name) for name in syscall_numbers._NUMBERS} }\n"
    "def call(name, *a):\n"
    "  found = c.syscall(*(ctypes.c_long(x) if type(x) is int else x for x in (numbers[name], *a)))\n"
    "  return found, ctypes.get_errno() if found < 0 else 0\n"
)
"""How a program makes a system call by its name; gives what that gives, and the error."""


def kept(name: str, code: str, **expect: Any) -> Snippet:
    """A program after which its variables are there."""
    return {"id": name, "code": code, "expect": {"lost": False, **expect}}


def timed(name: str, code: str, lost: bool | None = False) -> Snippet:
    """One that has to be stopped."""
    return {"id": name, "cat": "time", "code": code, "expect": {"timed_out": True, "lost": lost}}


def refused(name: str, code: str, *errors: str) -> Snippet:
    """One that is told that it may not."""
    return kept(name, code, err=list(errors or ("PermissionError", "OSError", "FileNotFoundError")))


def lost(name: str, code: str) -> Snippet:
    """One that ends its process."""
    return {"id": name, "code": code, "expect": {"err": ["WorkerDied"], "lost": True}}


SNIPPETS = [
    timed("a loop", "while True: pass"),
    timed("a loop that catches all", "while True:\n  try:\n    while True: x = 1\n  except BaseException: pass", None),
    timed("a loop in C", "sum(range(10 ** 12))", True),
    timed("a loop in a destructor", "class A:\n  def __del__(self):\n    while True: pass\na = A(); del a", None),
    timed("a loop in a repr", "class A:\n  def __repr__(self):\n    while True: pass\nA()"),
    timed("an error of many", "def g(n): return ValueError() if n == 0 else ExceptionGroup('x', [g(n - 1)] * 2)\nraise g(20)", None),
    timed("a loop in the text of an error", "class E(Exception):\n  def __str__(self):\n    while True: pass\nraise E"),
    timed("a loop that ignores signals", "import signal\nfor n in (2, 15): signal.signal(n, signal.SIG_IGN)\nwhile 1: 1", True),
    timed("a loop in a signal handler", "import signal\ndef f(*_):\n  while True: pass\nsignal.signal(2, f)\nf()", True),
    timed("it stops itself", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", True),
    timed("it waits for its own thread", "import threading; t = threading.Thread(target=iter(int, 1).__next__)\ne = threading.Event(); e.wait()"),
    timed("it sleeps without output", "import os, time; os.close(1); os.close(2); time.sleep(60)"),
    timed("it reads the channel", "import os\nwhile True: os.read(3, 1)", None),
    timed("a regular expression", "import re; re.match(r'(a+)+$', 'a' * 60 + 'b')", None),
    kept("a thread goes on", "import threading\nf = lambda: f()\ndef g():\n  while True: pass\nthreading.Thread(target=g, daemon=True).start()", ok=True),
    kept("memory", "x = []\nwhile True: x.append(bytes(10 ** 8))", err=["MemoryError"]),
    kept("memory at once", "x = bytearray(10 ** 11)", err=["MemoryError"]),
    refused("memory that is shared", "import mmap; mmap.mmap(-1, 10 ** 11)"),
    refused("a file in memory", "import os; os.memfd_create('x')"),
    refused("a large file", "open('x', 'wb').write(b'x' * (65 << 20))"),
    refused("a large hole", "open('x', 'wb').truncate(1 << 40)"),
    refused("many files open", "x = []\nwhile True: x.append(open('/dev/null'))"),
    refused("many threads", "import _thread, time\n_thread.stack_size(32768)\nwhile True: _thread.start_new_thread(time.sleep, (60,))", "RuntimeError", "MemoryError"),
    refused("forks", "import os\nwhile True: os.fork()"),
    refused("higher limits", "import resource; resource.setrlimit(resource.RLIMIT_DATA, (1 << 40, 1 << 40))", "ValueError", "PermissionError"),
    refused("the limits of others", "import os, resource; resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))"),
    kept("much output", "print('x' * (32 << 20))", ok=True, outmax=9000),
    kept("too much output", "while True: print('x' * 10 ** 6)", err=["OutputLimit"], outmax=9000),
    kept("a large value", "['x' * 10 ** 5] * 1000", ok=True, valmax=5000),
    kept("a deep value", "x = []\nfor _ in range(10 ** 5): x = [x]\nx", valmax=5000),
    kept("a large number", "1 << 10 ** 6", valmax=5000),
    kept("recursion", "def f(): f()\nf()", err=["RecursionError"]),
    lost("a deep recursion in C", "import sys; sys.setrecursionlimit(10 ** 9)\nx = ()\nfor _ in range(10 ** 6): x = (x,)\nhash(x)"),
    lost("no memory there", "import ctypes; ctypes.string_at(0)"),
    lost("it ends", "import os; os._exit(0)"),
    lost("it kills itself", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
    lost("it aborts", "import os; os.abort()"),
    lost("it closes the channel", "import os; os.close(3); import time; time.sleep(60)"),
    kept("it exits", "import sys; sys.exit(0)", err=["SystemExit"]),
    kept("it interrupts itself", "raise KeyboardInterrupt", err=["KeyboardInterrupt"]),
    refused("another program", "import os; os.execv('/bin/sh', ['sh', '-c', 'id'])"),
    refused("a process", "import subprocess; subprocess.run(['true'])"),
    refused("a process of multiprocessing", "import multiprocessing as m; p = m.get_context('fork').Process(target=print); p.start()"),
    refused("it kills its parent", "import os; os.kill(os.getppid(), 9)", "PermissionError", "ProcessLookupError"),
    refused("it signals the first process", "import os; os.kill(1, 15)", "PermissionError"),
    kept("ptrace", "import ctypes, os; c = ctypes.CDLL(None, use_errno=True); c.ptrace(16, os.getppid(), 0, 0)", value="-1"),
    kept("io_uring", "import ctypes; ctypes.CDLL(None).syscall(425, 8, 0)", value="-1"),
    kept("it watches folders", "import ctypes; ctypes.CDLL(None).inotify_init1(0)", value="-1"),
    kept("a newer system call", "import ctypes; ctypes.CDLL(None).syscall(463, 0, 0)", value="-1"),
    kept("namespaces", "import ctypes; ctypes.CDLL(None).unshare(0x10000000)", value="-1"),
    kept("memory that a pipe holds", CALL + "import os, ctypes as t; r, w = os.pipe(); b = t.create_string_buffer(8)\nv = (t.c_void_p * 2)(t.addressof(b), 8); call('vmsplice', w, v, 1, 0)", value=r"\(-1, 38\)"),
    kept("files that a pipe holds", CALL + "import os; open('f', 'wb').write(b'x' * 8); r, w = os.pipe(); f = os.open('f', 0)\n{{call('splice', f, None, w, None, 8, 0), call('sendfile', w, f, None, 8), call('tee', r, w, 8, 0)}}", value=r"\{\(-1, 38\)\}"),
    kept("files are copied", "import shutil; open('f', 'w').write('x' * 9); shutil.copy('f', 'g'); len(open('g').read())", value="9"),
    refused("larger pipes", "import fcntl, os; r, w = os.pipe(); fcntl.fcntl(w, 1031, 1 << 20)", "PermissionError"),
    kept("rules of its own", CALL + "a = b'\\xff\\x0f' + bytes(14); {{call('landlock_create_ruleset', a, 8, 0), call('landlock_add_rule', 0, 1, a, 0)}}", value=r"\{\(-1, 38\)\}"),
    kept("shared memory of others", CALL + "{{call(*a) for a in (('shmget', 0, 1, 0o600), ('shmat', 0, 0, 0), ('shmctl', 0, 13, bytes(256)), ('shmdt', 0))}}", value=r"\{\(-1, 1\)\}"),
    kept("semaphores of others", CALL + "{{call(*a) for a in (('semget', 0, 1, 0o600), ('semop', 0, bytes(8), 1), ('semctl', 0, 0, 19, bytes(256)), ('semtimedop', 0, bytes(8), 1, None))}}", value=r"\{\(-1, 1\)\}"),
    kept("messages of others", CALL + "{{call(*a) for a in (('msgget', 0, 0o600), ('msgsnd', 0, bytes(16), 1, 2048), ('msgrcv', 0, bytes(256), 8, 0, 2048), ('msgctl', 0, 13, bytes(256)))}}", value=r"\{\(-1, 1\)\}"),
    kept("message queues of others", CALL + "{{call(f'mq_{{what}}', b'x') for what in ('open', 'unlink', 'timedsend', 'timedreceive', 'notify', 'getsetattr')}}", value=r"\{\(-1, 1\)\}"),
    refused("the interfaces", "import array, fcntl, socket, struct\na, b = socket.socketpair(); r = array.array('B', bytes(4096))\nfcntl.ioctl(a, 0x8912, struct.pack('iL', 4096, r.buffer_info()[0]))", "PermissionError"),
    refused("the address of a device", "import fcntl, socket; a, b = socket.socketpair(); fcntl.ioctl(a, 0x8927, b'lo'.ljust(40, b'\\0'))", "PermissionError"),
    refused("large buffers of a socket", "import socket; a, b = socket.socketpair()\na.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)", "PermissionError"),
    kept("the name of an interface", "import socket; a, b = socket.socketpair()\ntry: a.setsockopt(1, 62, 1)\nexcept OSError: pass\na.getsockopt(1, 25, 16)", value="b''"),
    lost("a call of a 32-bit machine", "import ctypes, mmap; m = mmap.mmap(-1, 4096, prot=7); m.write(bytes.fromhex('b875000000cd80c3'))\nctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()"),
    refused("it writes outside", "open('{C}/secret.txt', 'w').write('x')"),
    refused("it makes a file outside", "open('{C}/x', 'w')"),
    refused("it removes what is outside", "import shutil; shutil.rmtree('{C}')"),
    refused("it reads outside", "open('{C}/secret.txt').read()"),
    refused("through a link", "import os; os.symlink('{C}/secret.txt', 'l'); open('l').read()"),
    refused("through a hard link", "import os; os.link('{C}/secret.txt', 'h')"),
    refused("it moves what is outside", "import os; os.rename('{C}/secret.txt', 'x')"),
    refused("upwards", "open('../' * 20 + '{C}/secret.txt').read()"),
    refused("it truncates", "import os; os.truncate('{C}/secret.txt', 0)"),
    refused("it lists the episodes", "import os; os.listdir('..')"),
    refused("it lists what is above", "import os; os.listdir('../..')"),
    refused("the memory of its parent", "import os; open(f'/proc/{{os.getppid()}}/mem', 'rb')"),
    refused("a device", "import os; os.mknod('d', 0o20600, os.makedev(1, 1))"),
    refused("a pipe with a name", "import os; os.mkfifo('p')"),
    kept("rights outside", "import os; os.chmod('{C}/secret.txt', 0o777); os.utime('{C}/secret.txt')"),
    kept("the environment", "import os; sorted(os.environ.values())", ok=True, not_out="hf_canary"),
    refused("the network", "import socket; socket.create_connection(('127.0.0.1', 22), 1)"),
    refused("datagrams", "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)"),
    refused("a socket of another program", "import socket; socket.socket(socket.AF_UNIX)"),
    refused("datagrams to a name", "import socket; a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.sendto(b'x', '{C}/log')", "PermissionError"),
    refused("raw datagrams to a name", "import socket; a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW); a.sendto(b'x', '{C}/log')", "PermissionError"),
    refused("a stream to a name", "import socket; a, b = socket.socketpair(); a.sendto(b'x', '{C}/log')", "OSError"),
    refused("signals by output", "import fcntl, os; fcntl.fcntl(1, fcntl.F_SETOWN, os.getppid())", "PermissionError"),
    refused("another signal by output", "import fcntl; fcntl.fcntl(1, 10, 9)", "PermissionError"),
    refused("raw packets", "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)"),
    {"id": "no modules", "code": "import sys; sys.modules.clear()", "expect": {"lost": None}},
    {"id": "no builtins", "code": "import builtins\nfor n in ('len', 'type', 'print'): setattr(builtins, n, None)", "expect": {"lost": None}},
    {"id": "no output", "code": "import sys; sys.stdout = sys.stderr = None\n1", "expect": {"ok": True, "value": "1"}},
    kept("surrogates", "print('\\ud800'); '\\udfff'", ok=True),
    kept("a NUL in the source", "x = '\0'", err=["SyntaxError", "ValueError"]),
    kept("a name that raises", "class M(type):\n  @property\n  def __name__(cls): raise SystemExit\nclass A(metaclass=M): pass\na = A(); 1", value="1"),
    kept("an error that cannot be told", "class E(Exception):\n  def __str__(self): raise SystemExit\nraise E", err=["E"]),
    kept("its input", "input()", err=["EOFError"]),
    kept("a forged result", FRAME + "send('{{\"ev\": \"result\", \"seq\": 0, \"success\": true}}'); 'real'", value="'real'"),
    kept("no number", FRAME + "send('{{\"ev\": \"result\", \"seq\": null}}'); 'real'", value="'real'"),
    lost("a deep frame", FRAME + "send('[' * 10 ** 5); input()"),
    lost("a number without end", FRAME + "send('9' * 10 ** 5); input()"),
    lost("NaN", FRAME + "send('{{\"x\": NaN}}'); import time; time.sleep(9)"),
    lost("a list", FRAME + "send('[]'); import time; time.sleep(9)"),
    lost("no JSON", FRAME + "send('x'); import time; time.sleep(9)"),
    lost("more values than there is memory for", FRAME + "send('{{\"x\": [' + '[],' * 10 ** 6 + '0]}}'); import time; time.sleep(9)"),
    lost("a frame in UTF-16 whose values look like a text", FRAME + "data = ('{{\"\u2200\": [' + '[],' * 10 ** 6 + '0], \"a\": 1}}').encode('utf-16-le'); os.write(3, struct.pack('!I', len(data)) + data); import time; time.sleep(1)"),
    lost("a frame with a mark of its encoding", FRAME + "send('\\ufeff{{\"x\": 1}}'); import time; time.sleep(9)"),
    kept("a long text", FRAME + "send('{{\"x\": \"' + '[],{{' * 10 ** 6 + '\"}}'); 1", value="1"),
    lost("a frame that never ends", "import os, struct; os.write(3, struct.pack('!I', 1 << 31)); import time; time.sleep(9)"),
    {"id": "a forged value", "code": WORKER + "worker.channel.send(dict(ev='result', seq=m['seq'], success=True, json=[[1e999, {{'\\ud800': [[]] * 9}}]], variables=7, final=3, error=[], cpu='x', threads=-1, watched=[1]))", "expect": {"lost": None}},
    {"id": "a deep forged value", "code": WORKER + FRAME + "send('{{\"ev\": \"result\", \"seq\": %d, \"json\": %s}}' % (m['seq'], '[' * 800 + ']' * 800))", "expect": {"lost": None}},
    kept("a tool that is none", WORKER + "worker.channel.call('__import__', ['os'], {{}})", err=["ToolError"]),
    timed("calls without end that are not read", WORKER + "n = 0\nwhile True:\n  n += 1\n  worker.channel.send(dict(ev='call', id=n, name='x' * 1000))", None),
    kept("calls of strange kinds", WORKER + "for n in (None, 'x', 1.5, [1], True): worker.channel.send(dict(ev='call', id=n, name=n, args=n, kwargs=n))\n1", value="1"),
]  # fmt: skip

HOST = "import os; host = int(open(f'/proc/{{os.getppid()}}/stat').read().rpartition(')')[2].split()[1])\n"
"""How a program finds the process that its worker works for: the parent of the zygote."""
REACHES = [
    refused("it opens the memory of its host", HOST + "open(f'/proc/{{host}}/mem', 'r+b')", "PermissionError"),
    refused("it reads the environment of its host", HOST + "open(f'/proc/{{host}}/environ', 'rb').read()", "PermissionError"),
    refused("it opens the memory of the zygote", "import os; open(f'/proc/{{os.getppid()}}/mem', 'r+b')", "PermissionError"),
    refused("it limits its host", HOST + "import resource; resource.prlimit(host, resource.RLIMIT_NOFILE, (99, 99))", "PermissionError"),
    refused("it slows its host down", HOST + "os.setpriority(os.PRIO_PROCESS, host, 19)", "PermissionError"),
    refused("it binds its host to a core", HOST + "os.sched_setaffinity(host, [0])", "PermissionError"),
    refused("it signals its host", HOST + "os.kill(host, 0)", "PermissionError"),
    kept("it reaches for the memory of its host", CALL + HOST + "b = bytes(64)\n{{call(*a) for a in (('process_vm_readv', host, b, 1, b, 1, 0), ('process_vm_writev', host, b, 1, b, 1, 0), ('ptrace', 16, host, 0, 0), ('pidfd_getfd', 0, 0, 0), ('kcmp', host, host, 0, 0, 0))}}", value=r"\{\(-1, 1\)\}"),
    kept("it works with files and starts processes", "import os, subprocess\nos.mkdir('a'); open('a/f', 'w').write('x'); os.rename('a/f', 'g')\nsubprocess.run(['cat', 'g'], capture_output=True).stdout", value="b'x'"),
]  # fmt: skip
"""What programs try at the level ``process``, where files and the network of its user are open to them."""


class Canary:
    """A folder outside that nobody may touch."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="canary-"))
        self.file = self.folder / "secret.txt"
        self.file.write_text(SECRET)
        self.file.chmod(0o644)
        self.folder.chmod(0o755)

    def is_whole(self) -> bool:
        """Whether it is as it was, which it is no more after this."""
        names = [one.name for one in self.folder.iterdir()]
        whole = names == ["secret.txt"] and self.file.read_text() == SECRET
        rights = stat.S_IMODE(self.file.stat().st_mode)
        shutil.rmtree(self.folder)
        return whole and rights == 0o644


def problems(sandbox: Sandbox, snippet: Snippet) -> list[str]:
    """What is wrong with how a program ends."""
    canary, expect = Canary(), snippet["expect"]
    code = snippet["code"].replace("{C}", str(canary.folder)).replace("{{", "{").replace("}}", "}")
    session = sandbox.open()
    try:
        session.name(Names(), ToolRegistry())
        began = time.monotonic()
        done = session.run(code, timeout=0.25 if expect.get("timed_out") else 30.0)
        took = time.monotonic() - began
        wrong = dict(_differences(done, session, expect))
    finally:
        session.close()
    wrong["an untouched folder"] = not canary.is_whole()
    wrong[f"an end within {LONGEST} s"] = took > LONGEST
    return [f"{snippet['id']}: {what}, not {done}" for what, is_wrong in wrong.items() if is_wrong]


def _differences(done: Execution, session: Session, expect: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    reported = done.stdout + done.stderr + done.shown + done.error
    checks: dict[str, Callable[[Any], bool]] = {
        "ok": lambda wanted: done.success is wanted,
        "err": lambda wanted: done.error_type in wanted,
        "timed_out": lambda wanted: done.timed_out is wanted,
        "lost": lambda wanted: wanted is None or done.state_lost is wanted,
        "outmax": lambda wanted: max(len(done.stdout), len(done.stderr)) <= wanted,
        "valmax": lambda wanted: len(done.shown) <= wanted,
        "value": lambda wanted: re.fullmatch(wanted, done.shown) is not None,
        "threads": lambda wanted: session.process.thread_count() - 1 == wanted,
        "not_out": lambda wanted: wanted not in reported,
    }
    for name, check in checks.items():
        if name in expect:
            yield f"{name}={expect[name]!r}", not check(expect[name])
    yield "a secret that is kept", SECRET in reported


def needs(level: str) -> None:
    """Skip a test of a level that is not there; in CI all are."""
    from absent import absent

    command = "apt-get install bubblewrap" if level == "namespace" else ""
    try:
        levels.require(level)
    except NotAvailable as error:
        absent(str(error), command)


def stands_still(session: Session) -> None:
    """See that the process of a session takes no time, however many threads it has."""
    import psutil

    process, until = psutil.Process(session.process.pid), time.monotonic() + 10
    while not has_stopped_threads(process.pid):
        assert time.monotonic() < until
        time.sleep(0.005)
    before = process.cpu_times()
    time.sleep(0.2)
    assert process.cpu_times() == before


def given() -> list[Snippet]:
    """The snippets of the folder that ENVWEAVE_DATA names."""
    path = Path(os.environ["ENVWEAVE_DATA"], "hostile_snippets.json")
    text = path.read_text()  # some look for the worker's variables, by names that they once had
    return json.loads(
        text.replace("'m'", "'message'").replace("self.ch.", "self.channel.").replace("'].ch.", "'].channel.")
    )


def all_problems(level: str, snippets: list[Snippet], python: str = sys.executable) -> list[str]:
    """What is wrong with how programs end at a level."""
    os.environ["HF_TOKEN"] = "hf_canary"
    sandbox = Sandbox(Setup(isolation=level, python=python), ready=2)
    try:
        with ThreadPoolExecutor(4) as threads:
            found = threads.map(lambda snippet: problems(sandbox, snippet), snippets)
            return [problem for each in found for problem in each]
    finally:
        sandbox.close()


def readable_python() -> str | None:
    """An interpreter that all users may run."""
    for python in (sys.executable, shutil.which("python3", path="/usr/local/bin:/usr/bin")):
        if python is not None and levels.is_for_all(python):
            return python
    return None


def main() -> None:
    """Try the snippets on standard input at a level; tell what is wrong on standard output."""
    snippets = json.load(sys.stdin)
    json.dump(all_problems(sys.argv[1], snippets), sys.stdout)


if __name__ == "__main__":
    main()
