"""An environment whose observations are arrays of no library known here, and whose infos hold rare types."""

from __future__ import annotations

import dataclasses
import datetime as dates
import enum
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete


class Asarray:
    """An array that NumPy reads by ``__array__``, as one of jax."""

    def __init__(self, value: Any) -> None:
        self.value = np.asarray(value, np.float32)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.value.copy()

    def __float__(self) -> float:
        return float(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)


class Lent:
    """An array that is lent by DLPack alone."""

    def __init__(self, value: Any) -> None:
        self.value = np.asarray(value, np.float32)

    def __dlpack__(self, **options: Any) -> Any:
        return self.value.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.value.__dlpack_device__()


class Colour(enum.Enum):
    RED = (255, 0, 0)
    BLUE = (0, 0, 255)


class Level(enum.StrEnum):
    HIGH = "high"


class Doors(enum.IntFlag):
    LEFT = 1
    RIGHT = 2


class Cell(NamedTuple):
    row: int
    seen: Any


class Pair(NamedTuple):
    one: Any
    other: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Card:
    suit: Colour
    tags: frozenset[str]


@dataclasses.dataclass
class Strict:
    """Counts how often it was checked: reading one must not check it again."""

    size: int
    checked = 0

    def __post_init__(self) -> None:
        type(self).checked += 1


RARE: dict[str, Any] = {
    "set": {1, "two", (3, 4)},
    "frozen": frozenset({1.5}),
    "empty": set(),
    "complex": 1 - 2j,
    "bytes": b"\x00\xff",
    "moment": dates.datetime(2026, 11, 19, 12, 30, 0, 5, tzinfo=dates.timezone(dates.timedelta(hours=2))),
    "local": dates.datetime(2026, 11, 19, 12, 30),
    "day": dates.date(2026, 11, 19),
    "time": dates.time(23, 59, 59, 999999),
    "duration": dates.timedelta(days=-1, seconds=5, microseconds=7),
    "enum": Colour.BLUE,
    "text enum": Level.HIGH,
    "flags": Doors.LEFT | Doors.RIGHT,
    "tuple": (1, (2, [3])),
    "named": Cell(1, Pair({2}, None)),
    "dataclass": Card(Colour.RED, frozenset({"a"})),
    "checked": Strict(4),
    "nested": [{"cards": {Cell(1, 2): Card(Colour.BLUE, frozenset())}}],
    "empty text": np.str_(""),
    "empty bytes": np.bytes_(b""),
    "many": {number: {number} for number in range(40)},
}


class Rare(gym.Env[Any, Any]):
    """Gives arrays that are not NumPy's, and rare values."""

    metadata = {"render_modes": []}
    observation_space = Box(-9, 9, (2,), np.float32)
    action_space = Discrete(3)

    def __init__(self, without_form: str = "") -> None:
        self.without_form = without_form

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        seen: Any = object() if self.without_form == "reset" else Asarray([1, 2])
        return seen, {"rare": RARE, "array": Lent([[1], [2]]), "odd": [object, {3}]}

    def step(self, action: Any) -> Any:
        seen: Any = [object()] if self.without_form == "step" else Asarray([3, action])
        return seen, Asarray(0.5), Asarray(action == 2), False, {"rare": RARE, "array": Asarray(4)}


gym.register("rare/Values-v0", "rare_values:Rare", disable_env_checker=True)
