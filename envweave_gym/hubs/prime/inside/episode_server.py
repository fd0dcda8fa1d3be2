"""Serves the owner of the program: loads the package of the settings, and plays one episode after the other.

JSON lines travel over the socket. The first are the settings. Then come ``begin``, ``abort`` and ``close``; the answers
are ``ready`` or ``refused``, ``ended`` and ``aborted``.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import socket
import sys
import traceback
from collections.abc import Coroutine
from importlib import import_module
from typing import Any

from .unplayable import Unplayable

_MAX_LINE_BYTES = 64 << 20
_LONGEST_REASON_CHARS = 2000
_SEED_RANGE = 2**32


async def serve(connection: socket.socket) -> None:
    """Load the package that the settings name, and play episodes until the owner closes the connection."""
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
        return await import_module(f".verifiers_{settings['generation']}", __package__).load(settings)
    except SystemExit as error:
        raise Unplayable(f"it has called sys.exit({error.code!r})") from None
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
            kind = "refused" if isinstance(error, Unplayable) else "error"
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
    text = str(error) if isinstance(error, Unplayable) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:_LONGEST_REASON_CHARS]
