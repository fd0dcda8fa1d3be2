"""Settings that no server can have are refused when it is made, in one sentence."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from served_envs import Coin
from servers import running_server

import envweave_gym as ew
from envweave_gym.core.faults import InvalidArgument
from envweave_gym.remote.address import remember_token
from envweave_gym_server import Settings, create_app
from envweave_gym_server.protocols.client_sockets import bound_waits

OUTSIDE = "is outside the allowed range; give 64k to 1g (65536 to 1073741824 bytes)"


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("isolation", "proces", "is unknown; there are 'thread' and 'process'"),
        ("isolation", ["thread"], "is unknown; there are 'thread' and 'process'"),
        ("idle_timeout", -5, "is not more than 0"),
        ("idle_timeout", "5", "is no number of seconds"),
        ("client_timeout", float("inf"), "is longer than this system can wait"),
        ("drain", float("nan"), "is not more than 0"),
        ("call_timeout", True, "is no number of seconds"),
        ("max_sessions", -1, "is not more than 0"),
        ("max_sessions", 1.5, "is no integer; give one from 1 on"),
        ("largest_frame", "x", "is no size; give bytes, or text like '512m' or '2g'"),
        ("largest_frame", 1.5, "is no size; give bytes, or text like '512m' or '2g'"),
        ("largest_frame", 1, OUTSIDE),
        ("largest_frame", -1, OUTSIDE),
        ("largest_frame", "63k", OUTSIDE),
        ("largest_frame", "2g", OUTSIDE),
        ("worker_memory", "4 GiB", "is no size; give bytes, or text like '512m' or '2g'"),
        ("worker_memory", 0, "is not more than 0"),
        ("log_size", -1, "is less than 0"),
        ("max_listeners", None, "is no integer; give one from 0 on"),
        ("hosts", "localhost", "are no names; give a tuple of them, as in ('localhost',)"),
    ],
)
def test_a_value_that_a_setting_cannot_have_is_refused(name: str, value: Any, problem: str):
    with pytest.raises(InvalidArgument) as caught:
        create_app(Coin, **{name: value})
    assert str(caught.value) == f"{name}={value!r} {problem}"


def test_settings_without_limits_and_listeners_are_settings():
    assert Settings(worker_memory=None, call_timeout=None, log_size=0, max_listeners=0).isolation == "thread"


@pytest.mark.parametrize(("name", "value"), [("worker_memory", "512m"), ("call_timeout", 5.0)])
def test_limits_of_processes_need_processes(name: str, value: Any):
    with pytest.raises(InvalidArgument, match=rf"^{name}=.*process.*threads.*isolation='process'"):
        create_app(Coin, **{name: value})


def test_sizes_are_written_as_container_engines_write_them():
    settings = Settings(isolation="process", worker_memory="512m", largest_frame="1G", log_size="2k")
    assert (settings.worker_memory, settings.largest_frame, settings.log_size) == (512 << 20, 1 << 30, 2048)


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_the_smallest_frames_are_enough_for_an_episode(isolation: str):
    with running_server("envweave/CodeFix-v0", isolation=isolation, largest_frame="64k") as server:
        remember_token(server.url, server.token or "")
        for env in (
            ew.make("envweave/CodeFix-v0", backend=server.url),
            ew.make("envweave/CodeFix-v0", backend=server.url, num_envs=8),
        ):
            env.reset(seed=1)
            env.step(env.action_space.sample())
            env.close()


@pytest.mark.parametrize("seconds", [0.001, 1e9])
def test_a_client_may_be_waited_for_however_long(seconds: float):
    assert Settings(client_timeout=seconds).client_timeout == seconds
    with socket.create_server(("127.0.0.1", 0)) as listener:
        bound_waits(listener, seconds)
