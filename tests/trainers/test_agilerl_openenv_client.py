"""The generic client of openenv 0.4.1, the release that AgileRL's trainer brings, plays our IDs without AgileRL."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

import pytest

pytest.importorskip("openenv", reason="OpenEnv is not installed: run make trainers")

from openenv_episodes import play_counter, play_many_echoes
from servers import RunningServer, running_server, until

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.filterwarnings("default"),  # those of other libraries are not ours to mend
]
ECHO, COUNTER = "envweave/Echo-v0", "envweave/Counter-v0"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(ECHO, COUNTER, protocol="openenv", default=ECHO, token=None) as running:
        yield running


def test_the_release() -> None:
    assert version("openenv") == "0.4.1"


def test_the_synchronous_client_plays_an_episode(server: RunningServer) -> None:
    play_counter(f"{server.url}/openenv/{COUNTER}")
    until(lambda: server.gauge("envweave_sessions") == 0)


def test_many_asynchronous_clients_play_at_the_same_time(server: RunningServer) -> None:
    play_many_echoes(server.url)
    until(lambda: server.gauge("envweave_sessions") == 0)
