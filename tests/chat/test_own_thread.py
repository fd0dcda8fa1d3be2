"""The thread of one environment: its calls come one after the other, and others do not wait for them."""

from __future__ import annotations

import threading

import pytest

from envweave_gym.chat.own_thread import OwnThread


def test_calls_run_in_order_in_one_thread_and_errors_come_to_the_caller():
    own = OwnThread("test")
    threads = [own.call(threading.get_ident) for _ in range(3)]
    failed = own.call(lambda: 1 // 0)
    assert len({one.result(5) for one in threads}) == 1
    assert threads[0].result() != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        failed.result(5)
    own.end()


def test_a_slow_environment_holds_up_no_other_one():
    slow, quick, go_on = OwnThread("slow"), OwnThread("quick"), threading.Event()
    waiting = slow.call(lambda: go_on.wait(30))
    assert quick.call(lambda: 1).result(5) == 1
    assert not waiting.done()
    go_on.set()
    assert waiting.result(5)
    slow.end()
    quick.end()


def test_what_is_cancelled_before_its_turn_does_not_run():
    own, go_on, ran = OwnThread("test"), threading.Event(), list[int]()
    first = own.call(lambda: go_on.wait(30))
    second = own.call(lambda: ran.append(1))
    assert second.cancel()
    go_on.set()
    assert first.result(5)
    own.call(lambda: None).result(5)
    assert ran == []
    own.end()
