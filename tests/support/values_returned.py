"""Reads all that resets and steps have returned, with the environment closed and no way to any server."""

from __future__ import annotations

import contextlib
import copy
import pickle
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from native_vectors import expect_equal

import envweave_gym as ew
from envweave_gym.episode.stream import Stream
from envweave_gym.episode.vector_infos import StreamRows
from envweave_gym.remote.session_protocol import SessionCore

LINE, FIX, ECHO, KUHN = (f"envweave/{name}-v0" for name in ("LineWorld", "CodeFix", "Echo", "KuhnPoker"))
ROWS: dict[str, Any] = {"num_envs": 4, "max_steps": 3}
SUBJECTS: dict[str, tuple[str, dict[str, Any]]] = {
    "one environment": (FIX, {}),
    "native rows": (LINE, {**ROWS, "autoreset_mode": "SameStep"}),
    "native rows that open with a message": (FIX, {**ROWS, "autoreset_mode": "SameStep"}),
    "rows in groups": (FIX, {**ROWS, "group": 2}),
    "single rows": (ECHO, ROWS),
    "a game": (KUHN, {}),
}
Read = Callable[[Any], Any]


def _items(array: Any) -> Any:
    """The items of an object array one by one, in a plain one."""
    plain = np.empty(len(array), object)
    for row in range(len(array)):
        plain[row] = array[row]
    return plain


def _compared(value: Any) -> Any:
    if type(value) in (StreamRows, Stream):  # elsewhere in infos stand arrays of arrays
        assert np.all(value == value)
    return value


WAYS: dict[str, Read] = {
    "by index": lambda value: value if isinstance(value, Stream) else _items(value),
    "iterated": lambda value: value if isinstance(value, Stream) else _items(list(value)),
    "as an array": lambda value: value if isinstance(value, Stream) else np.asarray(value),
    "pickled": lambda value: pickle.loads(pickle.dumps(value)),
    "copied": copy.copy,
    "copied deeply": copy.deepcopy,
    "compared": _compared,
    "represented": lambda value: (repr(value), value)[1],
}


def read(value: Any, way: Read) -> Any:
    """``value`` with every stream and every array of objects in it read this way."""
    if isinstance(value, dict):
        return {key: read(value[key], way) for key in value}
    if isinstance(value, tuple | list):
        return type(value)([read(item, way) for item in value])
    if isinstance(value, StreamRows) or (isinstance(value, np.ndarray) and value.dtype == object):
        return _items([read(item, way) for item in way(value)])
    return way(value) if isinstance(value, Stream) else value


def expect_values(backend: Any, subject: str, **options: Any) -> None:
    """What a ``backend`` returns reads, in every way, as what is returned in this process."""
    env_id, kwargs = SUBJECTS[subject]
    expected = copy.deepcopy(_played(ew.make(env_id, **kwargs)))
    env = ew.make(env_id, backend=backend, **options, **kwargs)
    returned = {way: _played(env) for way in WAYS}
    env.close()
    with cut_off():
        for way, results in returned.items():
            expect_equal(read(results, WAYS[way]), expected, way)
            for result in results:
                ew.messages_of(result[-1])
                ew.trainable(result[-1])


def expect_all_values(backend: Any, **options: Any) -> None:
    """The same of every subject; one replica serves all of them."""
    kept = ew.make(ECHO, backend=backend, **options)
    kept.reset(seed=0)
    for subject in SUBJECTS:
        expect_values(backend, subject, **options)
    kept.close()


def _played(env: Any) -> tuple[Any, ...]:
    """What a reset and a few steps return."""
    results = [env.reset(seed=3)]
    while len(results) < 5:
        try:
            results.append(env.step(_action(env, results[-1])))
        except ew.ResetNeeded:
            results.append(env.reset())
    return tuple(results)


def _action(env: Any, last: Any) -> Any:
    space = env.action_space
    if callable(space):
        asked = [agent for agent, info in last[-1].items() if info["active"]]
        if not asked:
            raise ew.ResetNeeded
        return dict.fromkeys(asked, 0)
    space.seed(5)
    return space.sample()


@contextlib.contextmanager
def cut_off() -> Iterator[None]:
    """Nothing is sent, connected or started by this thread."""
    here = threading.current_thread()

    def barred(call: Callable[..., Any]) -> Callable[..., Any]:
        def answer(*arguments: Any, **options: Any) -> Any:
            if threading.current_thread() is here:
                pytest.fail(f"{call.__qualname__} was called to read a value")
            return call(*arguments, **options)

        return answer

    calls = [(socket.socket, name) for name in ("connect", "connect_ex", "send", "sendall", "recv")]
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in [*calls, (SessionCore, "begin"), (subprocess.Popen, "__init__")]:
            patch.setattr(owner, name, barred(getattr(owner, name)))
        yield
