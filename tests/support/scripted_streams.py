"""Streams around environments that do as they are told, for the tests of ``RequestStream``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scripted_envs import Scripted

from envweave_gym import EventKind, stream_of
from envweave_gym.wrappers import RequestStream

NAME = "test/Scripted-v0"


def scripted(steps: Sequence[Any] = (), resets: Sequence[Any] = (), **kwargs: Any) -> RequestStream:
    return RequestStream(Scripted(steps, resets), name=NAME, **{"reset_deadline": 0, **kwargs})


def faulty(steps: Sequence[Any] = (), resets: Sequence[Any] = (), **kwargs: Any) -> RequestStream:
    return scripted(steps, resets, on_fault="truncate", **kwargs)


def seed_of(info: dict[str, Any]) -> int:
    return stream_of(info).events[0].data["seed"]


def kinds(info: dict[str, Any]) -> list[EventKind]:
    return [event.kind for event in stream_of(info).events]


class Malformed(Scripted):
    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def step(self, action: int) -> Any:
        return self.answer
