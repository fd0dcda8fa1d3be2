"""The server as a process: gunicorn with one worker, whose threads are more than the sessions."""

from __future__ import annotations

import signal
import socket
import threading
from typing import Any

from flask import Flask
from gunicorn.app.base import BaseApplication

from envweave_gym_server.state import ServerState

_DRAIN = 30
"""So many seconds steps under way have to finish once the server is told to stop."""


class Server(BaseApplication):
    """Runs a Flask application on one socket until SIGTERM."""

    def __init__(self, app: Flask, listener: socket.socket) -> None:
        self._app, self._listener = app, listener
        super().__init__()

    def load_config(self) -> None:
        """Tell gunicorn how to run it."""
        settings = self._state.settings
        threads = settings.max_sessions + 64
        options: dict[str, Any] = {
            "bind": f"fd://{self._listener.fileno()}",
            "worker_class": "gthread",
            "workers": 1,
            "threads": threads,
            "worker_connections": 2 * threads,
            "backlog": 2048,
            "timeout": 0,
            "graceful_timeout": _DRAIN,
            "keepalive": 30,
            "loglevel": "warning",
            "control_socket_disable": True,
            "post_worker_init": self._let_it_drain,
        }
        for name, value in options.items():
            if name in self.cfg.settings:
                self.cfg.set(name, value)

    def load(self) -> Any:
        """The application."""
        return self._app

    @property
    def _state(self) -> ServerState:
        return self._app.extensions["envweave"]

    def _let_it_drain(self, worker: Any) -> None:
        """On SIGTERM end the WebSockets too, which gunicorn alone would keep for as long as they like."""

        def stop(number: int, frame: Any) -> None:
            threading.Thread(target=self._state.stop, name="drain", daemon=True).start()
            worker.handle_exit(number, frame)

        signal.signal(signal.SIGTERM, stop)
