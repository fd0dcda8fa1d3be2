"""The server as a process: gunicorn with one worker, whose threads are more than the sessions."""

from __future__ import annotations

import errno
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from flask import Flask
from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.glogging import Logger

from envweave_gym_server.core.logs import JsonLines, named
from envweave_gym_server.core.owner_pipe import is_gone
from envweave_gym_server.core.settings import Settings
from envweave_gym_server.gunicorn.drain import Guard
from envweave_gym_server.gunicorn.memory import killed_for_memory
from envweave_gym_server.gunicorn.worker import Worker
from envweave_gym_server.protocols.current_app import service_of
from envweave_gym_server.sessions.service import SessionService

_SPARE_THREADS = 64
"""So many threads answer what is no session: short requests, and clients that are turned away."""
_GRACE = 5
"""So many seconds longer than the worker its parent waits before it kills what is left."""
TOO_LARGE = "it took more memory than there is; give the server more, as with memory="
_log = logging.getLogger(__name__)


class Server(BaseApplication):
    """Runs a Flask application on one socket until SIGTERM.

    Then calls under way may finish for ``settings.drain`` seconds while others are refused with 503. A second
    SIGTERM ends the server at once.
    """

    def __init__(
        self,
        app: Flask,
        listener: socket.socket,
        announce: Callable[[], None] | None = None,
        owner: int | None = None,
    ) -> None:
        """``announce`` is called once clients are answered.

        ``owner`` is the descriptor of a connection; when its other end closes, all processes of the server
        are killed.
        """
        self._app, self._announce, self._owner = app, announce, owner
        self._killed_before = self._killed = 0
        """So many had been killed for want of memory when the last worker but one began, and the last."""
        self._descriptor = listener.detach()  # gunicorn closes it, after it has made a socket of its own
        super().__init__()

    def load_config(self) -> None:
        """Tell gunicorn how to run it."""
        settings = self.settings
        options: dict[str, Any] = {
            "bind": f"fd://{self._descriptor}",
            "worker_class": Worker,
            "workers": 1,
            "threads": 2 * settings.max_sessions + settings.max_listeners + _SPARE_THREADS,
            "worker_connections": 1 << 20,  # the worker counts them itself
            "backlog": 2048,
            "timeout": 0,
            "graceful_timeout": int(settings.drain) + _GRACE,
            "keepalive": 30,
            "logger_class": _Logger,
            "loglevel": "warning",
            "control_socket_disable": True,
            "forwarder_headers": "",  # a client could contradict its own path with a header SCRIPT_NAME
            "pre_fork": self._count_killed,
            "post_worker_init": self._let_it_drain,
        }
        for name, value in options.items():
            if name in self.cfg.settings:
                self.cfg.set(name, value)

    def load(self) -> Any:
        """The application."""
        return self._app

    def run(self) -> None:
        """Serve until SIGTERM."""
        _allow_many_files()
        _Arbiter(self).run()

    @property
    def settings(self) -> Settings:
        """How it is run."""
        return self._state.settings

    @property
    def _state(self) -> SessionService:
        return service_of(self._app)

    def end_without_owner(self, arbiter: Arbiter) -> None:
        """In the parent, each second: kill the worker and end this process once the owner is gone.

        The parent looks, as an environment that keeps the GIL would stop a thread of the worker.
        """
        if self._owner is not None and is_gone(self._owner):
            _log.warning("server ended", extra={"why": "its owner is gone"})
            arbiter.kill_workers(signal.SIGKILL)
            os._exit(1)

    def _count_killed(self, arbiter: Any, worker: Any) -> None:
        """In the parent, before it makes a worker."""
        self._killed_before, self._killed = self._killed, killed_for_memory()

    def _let_it_drain(self, worker: Any) -> None:
        """In the worker, before it accepts: see that it ends well, and say that it has begun."""
        Guard(self._state, stop=lambda: worker.handle_exit(signal.SIGTERM, None)).watch()
        if worker.age > 1:
            why = TOO_LARGE if self._killed > self._killed_before else "nobody knows why"
            self._state.sessions.others_ended(why)
            told = f"its process had ended ({why}); all sessions are lost"
            _log.warning("server restarted", extra={"why": told})
        elif self._announce is not None:
            self._announce()


class _Arbiter(Arbiter):
    """The parent of the worker: ends with it, and has no second one, which would not know its sessions."""

    def __init__(self, app: Server) -> None:
        self._told = False
        self._ends = {signal.SIGTERM, signal.SIGINT}
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as it is under nohup
            self._ends.add(signal.SIGHUP)
        self._server = app
        super().__init__(app)

    def murder_workers(self) -> None:
        """What gunicorn calls each second to end workers that hang."""
        self._server.end_without_owner(self)
        super().murder_workers()

    def signal(self, sig: int, frame: Any) -> None:
        """Take down a signal; Ctrl-C and a terminal that closes end the server as SIGTERM does."""
        if sig in _OF_GUNICORN and sig not in self._ends:
            return
        if sig in self._ends:
            if self._told:  # gunicorn alone would not hear the second
                self.kill_workers(signal.SIGTERM)
                return
            self._told, sig = True, signal.SIGTERM
        super().signal(sig, frame)


_OF_GUNICORN = (signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGUSR2)
"""What gunicorn takes for the wish to have other workers."""


_OF_A_CLIENT = "Socket error processing request."
"""What gunicorn says when the socket of a client fails."""
_LEFT = frozenset({errno.EAGAIN, errno.EPIPE, errno.ECONNRESET, errno.ETIMEDOUT, errno.ENOTCONN})


class _Logger(Logger):
    """The log of gunicorn, one JSON object a line."""

    def setup(self, cfg: Any) -> None:
        """Have the handlers of gunicorn write JSON."""
        super().setup(cfg)
        for handler in self.error_log.handlers:
            handler.setFormatter(JsonLines())

    def exception(self, msg: str, *args: Any, **kwargs: Any) -> None:
        """Write an exception down; that a client has left, or reads no more, is nothing to trace."""
        error = sys.exc_info()[1]
        if msg == _OF_A_CLIENT and isinstance(error, OSError) and error.errno in _LEFT:
            _log.info("connection lost", extra=named(error))
        else:
            super().exception(msg, *args, **kwargs)


def _allow_many_files() -> None:
    """Each connection is an open file: take as many as this machine lets a process have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
