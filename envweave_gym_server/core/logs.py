"""Log of a server: one JSON object per line, which never quotes what a client has sent."""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from datetime import UTC, datetime
from typing import Any

_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_TRACE_FRAMES = 12


class JsonLines(logging.Formatter):
    """Formatter of log records as one JSON line: time, level, event, and the fields given as ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _USUAL}
        if record.exc_info and record.exc_info[1] is not None:
            line |= trace_of(record.exc_info[1])
        return json.dumps(line, default=repr)


def trace_of(error: BaseException) -> dict[str, Any]:
    """Return the type and the innermost frames of an exception, as fields of a log line."""
    frames = traceback.extract_tb(error.__traceback__)[-_TRACE_FRAMES:]
    where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    return {**named(error), "trace": where}


def named(error: BaseException) -> dict[str, Any]:
    """Return the type of an exception and the text of its ``errno``, as fields of a log line.

    The exception's own message is left out, because it may quote a client.
    """
    fields = {"error": type(error).__name__}
    if isinstance(error, OSError) and error.errno is not None:
        fields["reason"] = os.strerror(error.errno)
    return fields


def write_logs() -> None:
    """Write the log of this package to stderr, as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    log = logging.getLogger("envweave_gym_server")
    log.handlers[:] = [handler]
    log.setLevel(logging.INFO)
    log.propagate = False
