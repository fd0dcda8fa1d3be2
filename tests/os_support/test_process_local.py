from __future__ import annotations

import os
import threading
from collections.abc import Callable

from envweave_gym.os_support.process_local import Owner, ProcessLocal, in_forked_child, process_cache


def in_child(check: Callable[[], bool]) -> bool:
    """The result of ``check`` in a forked child."""
    child = os.fork()
    if child == 0:
        os._exit(0 if check() else 1)
    return os.waitpid(child, 0)[1] == 0


def test_a_forked_child_has_a_value_of_its_own_while_the_parent_holds_a_lock() -> None:
    lock, seen = ProcessLocal(threading.Lock), ProcessLocal(list[int])
    seen.value.append(1)
    with lock.value:
        assert in_child(lambda: lock.value.acquire(timeout=1) and seen.value == [])
    assert seen.value == [1]


def test_a_child_of_a_child_has_another_again() -> None:
    seen = ProcessLocal(list[int])

    def check() -> bool:
        seen.value.append(2)
        return in_child(lambda: seen.value == []) and seen.value == [2]

    assert in_child(check)


def test_a_forked_child_does_not_finalise_dropped_values() -> None:
    """A finaliser may wait for a lock that a thread of the parent held."""

    class Held:
        def __del__(self) -> None:
            ended.append(1)

    ended: list[int] = []
    held = ProcessLocal(Held)
    assert in_child(lambda: not ended and isinstance(held.value, Held))


def test_a_forked_child_is_not_the_owner() -> None:
    owner = Owner()
    assert owner.is_here()
    assert in_child(lambda: not owner.is_here())


def test_a_cache_is_empty_in_a_forked_child() -> None:
    @process_cache(maxsize=2)
    def made(name: str) -> list[str]:
        return [name]

    first = made("a")
    assert made("a") is first
    assert in_child(lambda: made("a") is not first and made("a") is made("a"))


def test_objects_clean_up_in_a_forked_child_while_they_live() -> None:
    class Pipe:
        is_open = True

        def forget(self) -> None:
            self.is_open = False

        def fail(self) -> None:
            raise OSError("it fails, which keeps no other from its turn")

    failing, pipe = Pipe(), Pipe()
    in_forked_child(failing, Pipe.fail)
    in_forked_child(pipe, Pipe.forget)
    assert in_child(lambda: not pipe.is_open)
    assert pipe.is_open
