"""What looks after replicas: how often it asks each, and how often it says what is wrong."""

from __future__ import annotations

import secrets
from collections import Counter
from typing import Any

import pytest
from servers import until

import envweave_gym as ew
from envweave_gym.providers import replica_health
from envweave_gym.providers.kubernetes.pod import KubernetesReplica
from envweave_gym.providers.replica_health import Watch
from envweave_gym.remote.started_servers import Upkeep


class Fake:
    """A replica that counts how often it is asked."""

    def __init__(self, check_every: float = 1.0, asked: Counter[str] | None = None) -> None:
        self.url, self.check_every, self.starts = f"http://fake/{check_every}", check_every, 1
        self.asked = Counter[str]() if asked is None else asked
        self.upkeep = Upkeep(self.ensure)

    def answers(self, timeout: float) -> bool:
        self.asked[self.url] += 1
        return True

    def ensure(self) -> None:
        """Nothing: it runs."""


def test_each_is_asked_as_often_as_is_good_for_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_health, "ROUND_S", 0.01)
    often, seldom = Fake(0.01), Fake(30.0)
    there: Any = [often, seldom]
    looking = Watch(lambda: there)
    until(lambda: often.asked[often.url] > 20)
    looking.end()
    assert seldom.asked[seldom.url] == 1
    assert KubernetesReplica.check_every == 10.0


def test_the_retry_interval_of_one_reply_holds_for_all() -> None:
    seldom = Fake(30.0)
    there: Any = [seldom]
    looking = Watch(lambda: there, every=0.01)
    until(lambda: seldom.asked[seldom.url] > 5)
    looking.end()


def test_a_repeated_error_is_logged_once_although_names_differ(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Fake):
        why = "the Pod envweave-{name} finds no node"

        def answers(self, timeout: float) -> bool:
            super().answers(timeout)
            return False

        def ensure(self) -> None:
            raise ew.NotAvailable(self.why.format(name=secrets.token_hex(6)))

    broken = Broken()
    there: Any = [broken]
    looking = Watch(lambda: there, every=0.01)
    until(lambda: broken.asked[broken.url] > 5)
    assert "finds no node" in looking.problems[broken.url]
    broken.why = "the Pod envweave-{name} has no image"
    asked = broken.asked[broken.url]
    until(lambda: broken.asked[broken.url] > asked + 5)
    looking.end()
    looking.wait(5)
    reported = [one.getMessage() for one in caplog.records]
    assert ["finds no node" in one for one in reported] == [True, False]
    assert "has no image" in reported[1]
