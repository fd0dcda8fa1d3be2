"""Cache of descriptions: an environment is made once to be described."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, wait
from hashlib import blake2b
from typing import Any

from envweave_gym.core.faults import AtCapacity
from envweave_gym.wire.messages import Create, encode, pack
from envweave_gym_server.core.semaphore import Semaphore

_MAX_CACHED = 256
_PATIENCE_S = 60.0
"""Time to wait for a description that another request is making."""
_PATIENCE_FOR_A_SLOT_S = 5.0
"""Time to wait for a slot, which may be held by an environment that is never finished."""

Description = dict[str, Any]


class Descriptions:
    """Cache of the descriptions that clients requested most recently.

    To describe an environment, it has to be made, which may take long and fail each time. So the number that
    are made at the same time is limited. Further requests for the same environment wait for the first, but not
    forever.
    """

    def __init__(self, describe: Callable[[Create], Description], most_at_once: int) -> None:
        self._describe = describe
        self._known: OrderedDict[bytes, Future[Description]] = OrderedDict()
        self._lock = threading.Lock()
        full = "environments are being made to be described, and none is done yet; come again"
        self._slots = Semaphore(most_at_once, full, _PATIENCE_FOR_A_SLOT_S)

    def of(self, create: Create) -> Description:
        """Return the description of the environment that a create message requests."""
        key = _key(create)
        with self._lock:
            future, mine = self._known.get(key), False
            if future is None:
                future, mine = Future[Description](), True
                self._known[key] = future
                if len(self._known) > _MAX_CACHED:
                    self._known.popitem(last=False)
            else:
                self._known.move_to_end(key)
        if mine:
            self._find_out(key, create, future)
        elif not wait([future], _PATIENCE_S).done:
            raise AtCapacity(f"{create.env_id} is still being made to be described; come again")
        return future.result()

    def _find_out(self, key: bytes, create: Create, future: Future[Description]) -> None:
        try:
            with self._slots.one():
                future.set_result(self._describe(create))
        except BaseException as error:  # noqa: BLE001 - it is raised by result(), for all who wait
            with self._lock:
                self._known.pop(key, None)
            future.set_exception(error)


def _key(create: Create) -> bytes:
    """Return the cache key of a create message; the order of its arguments does not matter."""
    kwargs = dict(sorted(create.kwargs.items(), key=lambda item: str(item[0])))
    return blake2b(encode(Create(create.env_id, create.api, pack(kwargs)))).digest()
