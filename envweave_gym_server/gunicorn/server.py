"""The server as a process: gunicorn with one worker, which has more threads than sessions."""

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
from envweave_gym_server.core.metrics import TOO_LARGE, oom_kills
from envweave_gym_server.core.owner_pipe import is_gone
from envweave_gym_server.gunicorn.worker import Worker
from envweave_gym_server.protocols.client_sockets import SOCKET, TAKEN
from envweave_gym_server.protocols.current_app import service_of
from envweave_gym_server.sessions.drain import Drain

_SPARE_THREADS = 64
"""Number of threads for requests outside of sessions, and for clients that are refused."""
_GRACE_S = 5
"""Time that the parent waits longer than the worker, before it kills what is left."""
_WORKER_SIGNALS = (signal.SIGHUP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGUSR2)
"""Signals at which gunicorn would start other workers."""
_log = logging.getLogger(__name__)


class GunicornServer(BaseApplication):
    """gunicorn that runs a Flask application on one socket until SIGTERM.

    After SIGTERM, running calls may take ``settings.drain`` seconds, and all others are refused with 503. A
    second SIGTERM ends the server at once.
    """

    def __init__(
        self,
        app: Flask,
        listener: socket.socket,
        announce: Callable[[], None] | None = None,
        owner: int | None = None,
    ) -> None:
        """``announce`` prints the URL; it is called when the server accepts clients.

        ``owner`` is the descriptor of a connection. When its other end closes, all processes of the server are
        killed.
        """
        self._app, self._announce, self._owner = app, announce, owner
        self.service = service_of(app)
        self._kills_before = self._kills = 0
        """Number of OOM kills when the worker before the last one began, and when the last one began."""
        self._descriptor = listener.detach()  # gunicorn closes it, after it has made a socket of its own
        super().__init__()

    def load_config(self) -> None:
        """Set gunicorn's options."""
        settings = self.service.settings
        options: dict[str, Any] = {
            "bind": f"fd://{self._descriptor}",
            "worker_class": Worker,
            "workers": 1,
            "threads": 2 * settings.max_sessions + settings.max_listeners + _SPARE_THREADS,
            "worker_connections": 1 << 20,  # the worker counts them itself
            "backlog": 2048,
            "timeout": 0,
            "graceful_timeout": int(settings.drain) + _GRACE_S,
            "keepalive": 30,
            "logger_class": _Logger,
            "loglevel": "warning",
            "control_socket_disable": True,
            "forwarder_headers": "",  # a client could contradict its own path with a header SCRIPT_NAME
            "pre_fork": self._count_kills,
            "post_worker_init": self._begin,
        }
        for name, value in options.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        """Return the WSGI application."""
        return _with_sockets(self._app)

    def run(self) -> None:
        """Serve until SIGTERM."""
        _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))  # each connection is an open file
        _Arbiter(self).run()

    def end_without_owner(self, arbiter: Arbiter) -> None:
        """In the parent, each second: kill the worker and exit once the owner is gone.

        The worker has no thread for this, because an environment that keeps the GIL would stop the thread.
        """
        if self._owner is not None and is_gone(self._owner):
            _log.warning("server ended", extra={"why": "its owner is gone"})
            arbiter.kill_workers(signal.SIGKILL)
            os._exit(1)

    def _count_kills(self, arbiter: Any, worker: Any) -> None:
        """In the parent, before it forks a worker: store the number of OOM kills."""
        self._kills_before, self._kills = self._kills, oom_kills()

    def _begin(self, worker: Any) -> None:
        """In gunicorn's worker process, before it accepts connections: install the drain, and report the start."""
        Drain(self.service, stop=lambda: worker.handle_exit(signal.SIGTERM, None)).start()
        if worker.age > 1:
            why = TOO_LARGE if self._kills > self._kills_before else "nobody knows why"
            self.service.sessions.others_ended(why)
            about = f"its process had ended ({why}); all sessions are lost"
            _log.warning("server restarted", extra={"why": about})
        elif self._announce is not None:
            self._announce()


def _with_sockets(app: Flask) -> Any:
    """Wrap ``app`` so that the WSGI environ has the client's socket, which a WebSocket may take over."""

    def call(environ: dict[str, Any], start_response: Any) -> Any:
        environ[SOCKET] = environ["gunicorn.socket"]
        response = app(environ, start_response)
        if TAKEN in environ:
            raise StopIteration  # gunicorn then sends nothing, and closes the connection
        return response

    return call


class _Arbiter(Arbiter):
    """gunicorn's parent process, with one worker process; signals that end the server end both.

    It starts no second worker in parallel, which would not know the sessions of the first.
    """

    def __init__(self, app: GunicornServer) -> None:
        self._is_ending = False
        self._ends = {signal.SIGTERM, signal.SIGINT}
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as it is under nohup
            self._ends.add(signal.SIGHUP)
        self._server = app
        super().__init__(app)

    def murder_workers(self) -> None:
        """Check whether the owner is gone; gunicorn calls this each second to end workers that hang."""
        self._server.end_without_owner(self)
        super().murder_workers()

    def signal(self, sig: int, frame: Any) -> None:
        """Queue a signal for the main loop; Ctrl-C and a closed terminal end the server as SIGTERM does."""
        if sig in _WORKER_SIGNALS and sig not in self._ends:
            return
        if sig in self._ends:
            if self._is_ending:  # gunicorn alone ignores the second
                self.kill_workers(signal.SIGTERM)
                return
            self._is_ending, sig = True, signal.SIGTERM
        super().signal(sig, frame)


_SOCKET_ERROR = "Socket error processing request."
"""Message that gunicorn logs when the socket of a client fails."""
_CLIENT_LEFT = frozenset({errno.EAGAIN, errno.EPIPE, errno.ECONNRESET, errno.ETIMEDOUT, errno.ENOTCONN})


class _Logger(Logger):
    """Log of gunicorn, one JSON object per line."""

    def setup(self, cfg: Any) -> None:
        """Make gunicorn's log handlers write JSON."""
        super().setup(cfg)
        for handler in self.error_log.handlers:
            handler.setFormatter(JsonLines())

    def exception(self, msg: str, *args: Any, **kwargs: Any) -> None:
        """Log an exception; without a traceback if the client has disconnected or reads no more."""
        error = sys.exc_info()[1]
        if msg == _SOCKET_ERROR and isinstance(error, OSError) and error.errno in _CLIENT_LEFT:
            _log.info("connection lost", extra=named(error))
        else:
            super().exception(msg, *args, **kwargs)
