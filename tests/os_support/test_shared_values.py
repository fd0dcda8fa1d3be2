"""Shared values: their shares are counted right, whenever the shares of others are collected."""

from __future__ import annotations

import gc
import os
from threading import Thread

from envweave_gym.os_support.shared_values import Share, SharedValues


class Value:
    """Counts how often it was closed."""

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def test_the_last_share_that_is_closed_closes_the_value() -> None:
    values = SharedValues[Value]()
    first, second = (values.take("key", Value) for _ in range(2))
    assert first.value is second.value
    first.close()
    first.close()
    assert second.value.closed == 0
    second.close()
    assert second.value.closed == 1
    assert values.take("key", Value).value is not second.value


def test_a_share_that_is_collected_ends() -> None:
    values = SharedValues[Value]()
    share = values.take("key", Value)
    value = share.value
    del share
    assert value.closed == 1


def test_a_share_that_is_collected_while_another_begins_does_not_stop_it() -> None:
    values = SharedValues[Value]()
    forgotten = values.take("one", Value)
    vars(forgotten)["itself"] = forgotten  # so it ends when garbage is collected
    del forgotten

    def made() -> Value:
        gc.collect()
        return Value()

    shares: list[Share[Value]] = []
    thread = Thread(target=lambda: shares.append(values.take("other", made)), daemon=True)
    thread.start()
    thread.join(10)
    (share,) = shares
    assert set(values._entries) == {"other"}
    share.close()
    assert not values._entries


def test_the_last_share_that_ends_while_another_is_taken_leaves_a_value() -> None:
    values = SharedValues[Value]()
    old = values.take("key", Value)

    class Entries(dict[object, object]):
        def get(self, key: object, default: object = None) -> object:
            found = super().get(key, default)
            old.close()
            return found

    values._entries = Entries(values._entries)  # type: ignore[assignment]
    new = values.take("key", Value)
    assert values._entries["key"].value is new.value
    new.close()
    assert not values._entries


def test_shares_that_a_forked_process_inherits_end_there_by_themselves() -> None:
    values = SharedValues[Value]()
    share = values.take("key", Value)
    child = os.fork()
    if child == 0:
        share.close()
        os._exit(share.value.closed)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert share.value.closed == 0
    share.close()
