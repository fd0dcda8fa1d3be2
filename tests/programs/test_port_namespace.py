"""The model port on a socket of a program's own network namespace, from which nothing else can be reached."""

from __future__ import annotations

import queue
import socket
import subprocess
import sys

import pytest

from envweave_gym.programs.port.call import Call
from envweave_gym.programs.port.model_port import ModelPort
from envweave_gym.programs.reply import Reply

NOT_ALLOWED = 77
PROGRAM = """
import ctypes, fcntl, json, os, socket, struct, sys, urllib.request
NEWUSER, NEWNET, SIOCSIFFLAGS, IFF_UP = 0x10000000, 0x40000000, 0x8914, 1
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(NEWNET) and libc.unshare(NEWUSER | NEWNET):
    sys.exit(77)
try:
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))
except OSError:
    sys.exit(77)
owner = socket.socket(fileno=int(sys.argv[1]))
listener = socket.create_server(("127.0.0.1", 8000))
socket.send_fds(owner, [b"x"], [listener.fileno()])
listener.close()
token = owner.recv(100).decode()
body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
request = urllib.request.Request("http://127.0.0.1:8000/v1/chat/completions", body, {"x-api-key": token})
with urllib.request.urlopen(request, timeout=60) as response:
    print(json.load(response)["choices"][0]["message"]["content"])
try:
    socket.create_connection(("192.0.2.1", 80), timeout=60)
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's")
def test_a_program_without_a_network_reaches_the_port_and_nothing_else():
    ours, theirs = socket.socketpair()
    calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
    command = [sys.executable, "-c", PROGRAM, str(theirs.fileno())]
    with (
        ours,
        subprocess.Popen(command, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, text=True) as program,
    ):
        theirs.close()
        ours.settimeout(60)
        data, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
        if not data:
            assert program.wait(60) == NOT_ALLOWED
            pytest.skip("this user may make no network namespaces")
        port = ModelPort(calls.put, listener=socket.socket(fileno=descriptors[0]))
        try:
            assert port.url() == "http://127.0.0.1:8000/v1"
            ours.sendall(port.token.encode())
            calls.get(timeout=60).answer(Reply("from outside"))
            printed, _ = program.communicate(timeout=60)
        finally:
            port.close()
    assert printed.splitlines() == ["from outside", "Network is unreachable"]
