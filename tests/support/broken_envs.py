"""An environment that keeps every rule of the conformance kit, and ones that break a single rule each."""

from __future__ import annotations

import itertools
import random
import secrets
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Text, Tuple
from gymnasium.utils import EzPickle

from envweave_gym.core.faults import InvalidAction, InvalidArgument, ResetNeeded
from envweave_gym.episode.emitter import Emitter
from envweave_gym.episode.message import message
from envweave_gym.episode.stream import UNNUMBERED, Event, EventKind
from envweave_gym.wrappers import RequestStream


class Walk(Emitter, gym.Env[Any, Any]):
    """A good one: walk up or down from a random place for five steps."""

    metadata = {"render_modes": ["ansi"], "render_fps": 1}

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.action_space = Discrete(3)
        self.observation_space = Box(-100, 100, (2,), np.float32)
        self.place, self.steps = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.place, self.steps = int(self.np_random.integers(0, 20)), 0
        self.emit(message("user", f"you are at {self.place}"))
        return self.see(), {}

    def step(self, action: Any) -> Any:
        self.place += int(action) - 1 + int(self.np_random.integers(0, 2))
        self.steps += 1
        return self.see(), float(self.place), self.steps == 5, False, {}

    def see(self) -> Any:
        return np.array([self.place, self.steps], np.float32)

    def render(self) -> Any:
        return f"at {self.place}" if self.render_mode == "ansi" else None


class OwnRandomness(Walk):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.place, self.steps = random.Random(seed).randrange(20), 0
        return self.see(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.see(), 0.0, self.steps == 5, False, {}


class HasSeed(Walk):
    def seed(self, seed: int | None = None) -> None:
        """As it was before Gymnasium 0.26."""


class WrongDtype(Walk):
    def see(self) -> Any:
        return np.array([self.place, self.steps], np.float64)


class CountsCalls(Walk):
    calls = itertools.count()

    def step(self, action: Any) -> Any:
        *rest, _ = super().step(action)
        return *rest, {"call": next(self.calls)}


class SharesState(Walk):
    shared = [0]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        seen = super().reset(seed=seed)
        self.shared[0] = self.place
        return seen

    def step(self, action: Any) -> Any:
        self.place = self.shared[0]
        result = super().step(action)
        self.shared[0] = self.place
        return result


class IgnoresSeed(Walk):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=42)


class SaysItIgnoresSeed(Walk):
    metadata = {**Walk.metadata, "ignores_seed": True}


class FreshSeed(Walk):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=secrets.randbits(31) if seed is None else seed)


class TakesZeroForNone(Walk):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed or None)


class SeedsAgain(Walk):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed or 0)


class DrawsNumpyGlobally(Walk):
    def step(self, action: Any) -> Any:
        np.random.random()
        return super().step(action)


class SeedsToAConstant(Walk):
    def reset(self, **kwargs: Any) -> Any:
        random.seed(42)
        np.random.seed(42)
        return super().reset(**kwargs)


class SeedsGlobally(Walk):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        random.seed(seed)
        return super().reset(seed=seed)


class DrawsInConstructor(Walk):
    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        random.random()


class StartsAnew(Walk, EzPickle):
    def __init__(self, render_mode: str | None = None) -> None:
        EzPickle.__init__(self, render_mode)
        Walk.__init__(self, render_mode)


class HoldsLambda(Walk):
    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.hook = lambda: None


class ShallowCopy(Walk):
    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.track = [0]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.track[0] = 0
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        self.track[0] += 1
        *rest, _ = super().step(action)
        return *rest, {"track": self.track[0]}

    def __deepcopy__(self, memo: dict[int, Any]) -> ShallowCopy:
        twin = type(self)(self.render_mode)
        twin.__dict__.update(self.__dict__)
        return twin


class TellsArrays(Walk):
    def step(self, action: Any) -> Any:
        self.emit(Event(UNNUMBERED, EventKind.METRICS, data={"array": np.zeros(2)}))
        return super().step(action)


class TellsTuples(Walk):
    def step(self, action: Any) -> Any:
        self.emit(Event(UNNUMBERED, EventKind.METRICS, data={"pair": (1, 2)}))
        return super().step(action)


class StartsTwice(Walk):
    def step(self, action: Any) -> Any:
        self.emit(Event(UNNUMBERED, EventKind.EPISODE_START, data={}))
        return super().step(action)


class EndsEarly(Walk):
    def step(self, action: Any) -> Any:
        self.emit(Event(UNNUMBERED, EventKind.EPISODE_END, data={}))
        return super().step(action)


class BuiltInText(Walk):
    """Gymnasium's ``Text`` stays at ``'000…'`` in the shared memory of ``AsyncVectorEnv``."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.observation_space = Text(20, min_length=1)

    def see(self) -> Any:
        return f"at{self.place}step{self.steps}".replace("-", "m")


class BuiltInTextInside(BuiltInText):
    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.observation_space = Tuple((Discrete(30), Dict({"text": self.observation_space})))

    def see(self) -> Any:
        return self.steps, {"text": super().see()}


class RewritesObservation(Walk):
    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.seen = np.zeros(2, np.float32)

    def see(self) -> Any:
        self.seen[:] = super().see()
        return self.seen


class PaysNaN(Walk):
    """At the third step alone, where Gymnasium's checkers do not look."""

    def step(self, action: Any) -> Any:
        seen, reward, *rest = super().step(action)
        return seen, float("nan") if self.steps == 3 else reward, *rest


class TellsNaN(Walk):
    """A good one: a NaN in an info is no difference between two episodes."""

    def step(self, action: Any) -> Any:
        *rest, _ = super().step(action)
        return *rest, {"loss": np.array([np.nan, 1.0]), "score": np.float32("nan") if self.steps > 1 else 0.0}


class TakesOrigin(Walk):
    def __init__(self, origin: Any = (), render_mode: str | None = None) -> None:
        super().__init__(render_mode)


class RaisesOnTwo(Walk):
    def step(self, action: Any) -> Any:
        if action == 2:
            raise RuntimeError("I do not like this action")
        return super().step(action)


class LeavesItsSpace(Walk):
    def see(self) -> Any:
        return np.array([self.place, 1000 * self.steps], np.float32)


class SwallowsArguments(Walk):
    def __init__(self, render_mode: str | None = None, **ignored: Any) -> None:
        super().__init__(render_mode)


class RendersNothing(Walk):
    def render(self) -> Any:
        return None


class DrawsNumbersToRender(Walk):
    def render(self) -> Any:
        self.np_random.random()
        return super().render()


class DeclaresNoModes(Walk):
    metadata = {}


class ClosesOnce(Walk):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("it is closed already")
        self.closed = True


class Impatient(gym.Wrapper[Any, Any, Any, Any]):
    """Counts a step before the stream inside has looked at the action."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.asked = 0

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None and seed is not True:
            self.asked = 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self.asked += 1
        *rest, info = super().step(action)
        return *rest, {**info, "asked": self.asked}


def impatient(**kwargs: Any) -> Any:
    return Impatient(RequestStream(Walk(), max_steps=kwargs.get("max_steps")))


def bare(**kwargs: Any) -> Any:
    """Without any stack, as Gymnasium's own wrappers leave it."""
    return Walk()


class MovesRowByRow(gym.vector.VectorWrapper):
    """Finds a wrong action in the last row when the others have acted."""

    def step(self, actions: Any) -> Any:
        try:
            return super().step(actions)
        except InvalidAction:
            if actions is not None and len(actions) == self.num_envs:
                super().step(np.zeros(self.num_envs, np.int64))
            raise


class SeedsRowByRow(gym.vector.VectorWrapper):
    """Finds a bad seed when the rows before it are reset."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        try:
            return super().reset(seed=seed, options=options)
        except InvalidArgument:
            super().reset()
            raise


class Nameless(gym.vector.VectorWrapper):
    """Does not say whose action was wrong."""

    def step(self, actions: Any) -> Any:
        try:
            return super().step(actions)
        except InvalidAction:
            raise InvalidAction("no such action") from None


class StartsByItself(gym.vector.VectorWrapper):
    """Resets where nobody has."""

    def step(self, actions: Any) -> Any:
        try:
            return super().step(actions)
        except ResetNeeded:
            super().reset()
            return super().step(actions)
