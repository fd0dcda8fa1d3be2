"""What the log says of exceptions: clients that leave are no error, a machine that is used up is one."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
from collections.abc import Iterator
from contextlib import redirect_stderr
from typing import Any

import pytest
from gunicorn.config import Config

from envweave_gym_server.core.logs import trace_of
from envweave_gym_server.gunicorn.server import _Logger

SOCKET, BOOT = "Socket error processing request.", "Exception in worker process"


@pytest.fixture
def gunicorn() -> Iterator[logging.Logger]:
    """The log of gunicorn, which is as it was afterwards."""
    logger = logging.getLogger("gunicorn.error")
    before = logger.handlers[:], logger.propagate, logger.level
    yield logger
    logger.handlers[:], logger.propagate = before[:2]
    logger.setLevel(before[2])


def written(what: str, error: Exception) -> str:
    """What gunicorn writes to stderr when it tells of an exception."""
    with redirect_stderr(io.StringIO()) as stderr:
        log = _Logger(Config())
        try:
            raise error
        except Exception:
            log.exception(what)
    return stderr.getvalue()


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EPIPE, errno.ECONNRESET, errno.ETIMEDOUT])
@pytest.mark.usefixtures("gunicorn")
def test_a_client_that_leaves_is_a_note_that_says_how(number: int, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "envweave_gym_server")
    assert written(SOCKET, OSError(number, "what was sent")) == ""
    [record] = caplog.records
    about: Any = record
    assert (record.levelname, record.getMessage()) == ("INFO", "connection lost")
    assert about.reason == os.strerror(number)


@pytest.mark.parametrize(
    ("what", "number", "reason"),
    [
        (BOOT, errno.EMFILE, "Too many open files"),
        (BOOT, errno.ENOSPC, "No space left on device"),
        (BOOT, errno.EACCES, "Permission denied"),
        (BOOT, errno.EPIPE, "Broken pipe"),
        (SOCKET, errno.EMFILE, "Too many open files"),
        (SOCKET, errno.EBADF, "Bad file descriptor"),
    ],
)
@pytest.mark.usefixtures("gunicorn")
def test_a_refusal_of_the_system_is_an_error_with_its_reason(what: str, number: int, reason: str):
    line = json.loads(written(what, OSError(number, "what was sent")))
    assert (line["level"], line["event"], line["reason"]) == ("error", what, reason)
    assert line["trace"]
    assert "what was sent" not in str(line)


def test_an_exception_without_a_number_has_no_reason():
    assert trace_of(OSError("what was sent")) == {"error": "OSError", "trace": []}
