"""The container engine of this machine, for the tests that need a real one."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from absent import ENGINE_COMMAND, absent

from envweave_gym.containers.engine import engine, engine_socket
from envweave_gym.containers.ownership import OWNER, labels_of_owner
from envweave_gym.core.faults import NotAvailable

CORE = "envweave-core"


@pytest.fixture(scope="session")
def client() -> Any:
    """A client of the engine, which has our images; in CI they must be there."""
    try:
        found = engine()
        found.images.get(CORE)
    except Exception as error:  # noqa: BLE001 - whatever it is, there is no engine to test with
        absent(str(error) if isinstance(error, NotAvailable) else f"{CORE} is missing", ENGINE_COMMAND)
    return found


def ours(client: Any) -> list[Any]:
    """The containers that this process has started."""
    label = f"{OWNER}={labels_of_owner()[OWNER]}"
    return client.containers.list(all=True, filters={"label": label}, ignore_removed=True)


Folders = Callable[[], set[Path]]


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[Folders]:
    """The folders with sockets of containers without a network; other tests have theirs elsewhere."""
    with tempfile.TemporaryDirectory(prefix="own-") as place:
        monkeypatch.setattr(tempfile, "tempdir", place)
        monkeypatch.setenv("TMPDIR", place)  # for processes that the test starts
        yield lambda: set(Path(place).glob("envweave-socket-*"))


class CutOff:
    """Stands before the engine, at a port of this machine, until it is cut off."""

    def __init__(self) -> None:
        self._engine = str(engine_socket())
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                asking, _ = self._listener.accept()
                engine_side = socket.socket(socket.AF_UNIX)
                engine_side.connect(self._engine)
                self._sockets += [asking, engine_side]
                for pair in ((asking, engine_side), (engine_side, asking)):
                    self._threads.append(threading.Thread(target=self._pump, args=pair))
                    self._threads[-1].start()

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        """Nobody is heard any more, and nobody answers."""
        for one in (self._listener, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(10)
