"""A suite whose IDs each break one rule of the atlas; it is installed into an interpreter of its own, and never here.

``installed`` makes that interpreter. The environments must work with Gymnasium and NumPy alone.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import venv
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

BROKEN = {
    "OutsideSpace": ("contract", "broken"),
    "VectorReward": ("scalar_rewards", "broken"),
    "InfiniteVectorReward": ("contract", "broken"),
    "Raises": ("contract", "raises"),
    "RaisesLater": ("contract", "raises"),
    "Segfaults": ("contract", "crashes"),
    "Exits": ("contract", "crashes"),
    "ExitsAsIfPassed": ("contract", "crashes"),
    "ExitsAsIfSkipped": ("contract", "crashes"),
    "Hangs": ("contract", "hangs"),
    "HangsUnseeded": ("unseeded_start", "hangs"),
    "IgnoresSeed": ("same_seed", "broken"),
    "Remembers": ("same_seed_again", "broken"),
    "SharesState": ("beside_another", "broken"),
    "ConstantSeed": ("different_seeds", "broken"),
    "FreshEntropy": ("unseeded_reset", "broken"),
    "GlobalGenerator": ("global_generators", "broken"),
    "SameArray": ("fresh_observations", "broken"),
    "Rewrites": ("fresh_observations", "broken"),
    "RewritesInfo": ("fresh_infos", "broken"),
    "RenderDraws": ("render_changes_nothing", "broken"),
    "ClosesOnce": ("closes_twice", "raises"),
    "LeaksThreads": ("leaves_nothing", "broken"),
    "LeaksProcesses": ("leaves_nothing", "broken"),
    "LeaksFiles": ("leaves_nothing", "broken"),
    "LeaksMemory": ("gives_memory_back", "broken"),
    "NoOptions": ("contract", "raises"),
    "OptionsNeedKey": ("own_checker", "broken"),
}
"""The rule that each ID breaks, and how."""


class Good(gym.Env[Any, Any]):
    metadata = {"render_modes": ["human", "rgb_array"], "render_fps": 30}
    action_space = gym.spaces.Discrete(3)
    observation_space = gym.spaces.Box(-100, 100, (2,), np.float32)

    def __init__(self, render_mode: Any = None) -> None:
        self.render_mode = render_mode
        self.begin()

    def begin(self) -> None:
        """Hook of the constructor."""

    def see(self) -> Any:
        return np.array([self.place, self.steps], np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place, self.steps = float(self.np_random.integers(-5, 5)), 0
        return self.see(), {}

    def step(self, action: Any) -> Any:
        self.place += float(action) - 1 + float(self.np_random.integers(-1, 2))
        self.steps += 1
        return self.see(), 1.0, self.steps >= 10, False, {}

    def render(self) -> Any:
        return np.zeros((4, 4, 3), np.uint8)


class DrawsForNothing(Good):
    """Draws numbers, from which nothing follows."""

    def see(self) -> Any:
        return np.zeros(2, np.float32)


class NeedsPackage(Good):
    def begin(self) -> None:
        import no_such_package_at_all  # noqa: F401  # pyright: ignore


class NeedsArgument(Good):
    def __init__(self, level: int, render_mode: Any = None) -> None:
        super().__init__(render_mode)


class OutsideSpace(Good):
    def see(self) -> Any:
        return super().see() + 1000


class VectorReward(Good):
    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        return (observation, np.array([reward, 0.0]), *rest)


class InfiniteVectorReward(Good):
    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return (observation, [np.inf, 0.0], *rest)


class NeedsMuchMemory(Good):
    def begin(self) -> None:
        self.large = bytearray(os.urandom(1)) * (300 << 20)
        time.sleep(600)


class Raises(Good):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        raise RuntimeError("it never starts")


class RaisesLater(Good):
    def step(self, action: Any) -> Any:
        if self.steps == 4:
            raise RuntimeError("the fifth step fails")
        return super().step(action)


class Segfaults(Good):
    def step(self, action: Any) -> Any:
        os.kill(os.getpid(), 11)
        return super().step(action)


class KillsProber(Good):
    """Ends the process that has started this one."""

    def step(self, action: Any) -> Any:
        os.kill(os.getppid(), 9)
        return super().step(action)


class Exits(Good):
    def step(self, action: Any) -> Any:
        os._exit(3)


class ExitsAsIfPassed(Good):
    def step(self, action: Any) -> Any:
        sys.exit(0)


class ExitsAsIfSkipped(Good):
    def step(self, action: Any) -> Any:
        sys.exit(77)


class Hangs(Good):
    def step(self, action: Any) -> Any:
        while True:
            pass


class HangsUnseeded(Good):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        while seed is None and self._np_random is None:
            pass
        return super().reset(seed=seed)


class IgnoresSeed(Good):
    def begin(self) -> None:
        self.own = np.random.default_rng()

    def see(self) -> Any:
        return super().see() + self.own.random(dtype=np.float32)


class Remembers(Good):
    episodes = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        result = super().reset(seed=seed)
        self.episodes += 1
        return result[0] + np.float32(self.episodes > 3), {}


class SharesState(Good):
    last = -1

    def step(self, action: Any) -> Any:
        observation, *rest = super().step(action)
        before, SharesState.last = SharesState.last, id(self)
        return (observation + np.float32(before not in (-1, id(self))), *rest)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        SharesState.last = id(self)
        return super().reset(seed=seed)


class ConstantSeed(Good):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset(seed=None if seed is None else 1)


class FreshEntropy(Good):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset(seed=random.SystemRandom().randrange(10**6) if seed is None else seed)


class GlobalGenerator(Good):
    def step(self, action: Any) -> Any:
        np.random.random()
        return super().step(action)


class SameArray(Good):
    fixed: Any = None

    def see(self) -> Any:
        self.fixed = np.zeros(2, np.float32) if self.fixed is None else self.fixed
        return self.fixed


class Rewrites(SameArray):
    def see(self) -> Any:
        super().see()[:] = self.place, self.steps
        return self.fixed


class RewritesInfo(Good):
    def begin(self) -> None:
        self.counts: dict[str, Any] = {"steps": 0}

    def step(self, action: Any) -> Any:
        *rest, _ = super().step(action)
        self.counts["steps"] = self.steps
        return (*rest, self.counts)


class RenderDraws(Good):
    def render(self) -> Any:
        self.np_random.random()
        return super().render()


class ClosesOnce(Good):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("it is closed")
        self.closed = True


class LeaksThreads(Good):
    def begin(self) -> None:
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


class LeaksProcesses(Good):
    def begin(self) -> None:
        LEFT.append(subprocess.Popen(["sleep", "613"]))


LEFT: list[Any] = []


class LeaksFiles(Good):
    def begin(self) -> None:
        os.close(tempfile.mkstemp()[0])


class LeaksMemory(Good):
    def begin(self) -> None:
        LEFT.append(bytearray(os.urandom(1)) * 2**20)


class NoOptions(Good):
    def reset(self, *, seed: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().reset(seed=seed)


class OptionsNeedKey(Good):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if options is not None:
            options["level"]
        return super().reset(seed=seed)


MADE = ("Good", "DrawsForNothing", "NeedsPackage", "NeedsArgument", "NeedsMuchMemory", "KillsProber", *BROKEN)

_REGISTRATION = """
for _name in MADE:
    gym.register(f"Toy/{_name}-v0", f"misbehaving_suite:{_name}")
"""
"""What a copy of this module does that this one must not: other tests look at all registered IDs."""


def write_module(folder: Path) -> None:
    """Write a copy of this module that registers the IDs."""
    (folder / Path(__file__).name).write_text(Path(__file__).read_text() + _REGISTRATION)


def installed(folder: Path) -> str:
    """Make a virtual environment that has this module as the distribution ``misbehaving``; return its interpreter."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/*/site-packages")
    write_module(packages)
    record = packages / "misbehaving-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: misbehaving\nVersion: 1.0\n")
    (record / "RECORD").write_text(f"{Path(__file__).name},,\n")
    (packages / "others.pth").write_text(str(Path(np.__file__).parent.parent))
    return str(folder / "bin" / "python")
