"""What environments are like, asked of each once and then known."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from envweave_gym.wire.messages import Create, encode, pack

_MOST = 1000


class Descriptions:
    """The descriptions of the environments that clients asked for lately.

    Making an environment may take long; whoever asks for the same meanwhile waits for it, others do not.
    """

    def __init__(self, describe: Callable[[Create], dict[str, Any]]) -> None:
        self._describe = describe
        self._known: OrderedDict[bytes, Future[dict[str, Any]]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, create: Create) -> dict[str, Any]:
        """What the environment is like that a client asks for."""
        key = encode(Create(create.env_id, create.api, pack(create.kwargs)))
        with self._lock:
            future, mine = self._known.get(key), False
            if future is None:
                future, mine = Future(), True
                self._known[key] = future
                if len(self._known) > _MOST:
                    self._known.popitem(last=False)
            else:
                self._known.move_to_end(key)
        if mine:
            self._find_out(key, create, future)
        return future.result()

    def _find_out(self, key: bytes, create: Create, future: Future[dict[str, Any]]) -> None:
        try:
            future.set_result(self._describe(create))
        except BaseException as error:  # noqa: BLE001 - it is raised by result(), for all who wait
            with self._lock:
                self._known.pop(key, None)
            future.set_exception(error)
