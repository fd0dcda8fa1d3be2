"""Program that plays the episodes of one hub package: the library evaluates one task at a time.

It is run by path in the package's virtual environment, where this package is not installed. Its argument is the
descriptor of a socket, over which JSON lines travel. The first is the settings. Then come ``begin``, ``abort`` and
``close``; the answers are ``ready`` or ``refused``, ``ended`` and ``aborted``.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import random
import signal
import socket
import sys
import traceback
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

_HERE = Path(__file__).parent
_MAX_LINE_BYTES = 64 << 20
_LONGEST_REASON_CHARS = 2000
_SEED_RANGE = 2**32


class Refused(Exception):
    """Raised for a package that cannot be played; another try would not help."""


def main() -> None:
    """Serve the owner of the socket until it closes it."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(connection.fileno(), False)
    sys.argv[1:] = []
    # The folder of this file was put first in the path; modules of packages must not be hidden by those here.
    sys.path[:] = [one for one in sys.path if one != str(_HERE)]
    with suppress(asyncio.CancelledError):
        asyncio.run(_serve(connection))


def own_module(name: str) -> ModuleType:
    """Import a module of this folder under a name that no package can have taken."""
    spec = importlib.util.spec_from_file_location(f"_envweave_{name}", _HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


async def _serve(connection: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=connection, limit=_MAX_LINE_BYTES)

    def send(message: dict[str, Any]) -> None:
        writer.write(json.dumps(message).encode() + b"\n")

    settings = json.loads(await reader.readline())
    loop, serving = asyncio.get_running_loop(), asyncio.current_task()
    assert serving is not None
    loop.add_signal_handler(signal.SIGTERM, serving.cancel)
    try:
        player = await _loaded(settings)
    except Exception as error:  # noqa: BLE001 - a package may raise anything
        traceback.print_exc()
        send({"is": "refused", "why": reason(error)})
        await writer.drain()
        return
    send({"is": "ready", "ready": player.ready})
    episodes = _Episodes(player, send)
    try:
        while line := await reader.readline():
            message = json.loads(line)
            if message["do"] == "close":
                break
            if message["do"] == "begin":
                await episodes.abort()
                episodes.begin(message)
            elif message["do"] == "abort":
                await episodes.abort()
                send({"is": "aborted", "number": message["number"]})
    finally:
        loop.add_signal_handler(
            signal.SIGTERM, lambda: None
        )  # a second cancellation would interrupt the cleaning up
        await episodes.abort()
        await player.close()


async def _loaded(settings: dict[str, Any]) -> Any:
    """Load the package with the player of its generation; restore the signal handlers that its library replaces."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return await own_module(f"verifiers_{settings['generation']}").load(settings)
    except SystemExit as error:
        raise Refused(f"it has called sys.exit({error.code!r})") from None
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


class _Episodes:
    """The episode that is played, if one is."""

    def __init__(self, player: Any, send: Any) -> None:
        self._player, self._send = player, send
        self._task: asyncio.Task[None] | None = None

    def begin(self, message: dict[str, Any]) -> None:
        """Play an episode in a task of its own."""
        seed_generators(message["seed"])
        play = self._player.play(message["index"], f"e{message['episode']}")
        self._task = asyncio.create_task(self._play(play, message["episode"]))

    async def _play(self, play: Coroutine[Any, Any, dict[str, Any]], episode: int) -> None:
        try:
            self._send({"is": "ended", "episode": episode, "result": await play})
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - a package may raise anything
            traceback.print_exc()
            kind = "refused" if type(error).__name__ == Refused.__name__ else "error"
            self._send({"is": "ended", "episode": episode, kind: reason(error)})

    async def abort(self) -> None:
        """Cancel the episode, and wait until it has cleaned up."""
        task, self._task = self._task, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])


def seed_generators(seed: int) -> None:
    """Seed the generators of the process, which packages draw from: that of ``random``, and NumPy's if it is loaded."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % _SEED_RANGE)


def reason(error: BaseException) -> str:
    """Return an exception as one line, with the first cause that it was raised from."""
    text = f"{type(error).__name__}: {error}" if type(error).__name__ != Refused.__name__ else str(error)
    return " ".join(text.split())[:_LONGEST_REASON_CHARS]


if __name__ == "__main__":
    main()
