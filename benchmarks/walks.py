"""How many of our functions one call goes through, and in how many files: what a reader has to follow.

Each walk is traced with ``sys.setprofile`` in a steady state, in the thread that makes it; a function counts
each time it is called. Comprehensions and generator expressions are not functions to a reader. The walks of a
server are traced there, by the environment that it serves: from the end of one step to that of the next.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium as gym
import pettingzoo

import envweave_gym as ew
from benchmarks.rounds import show
from envweave_gym.registry.catalog import EnvCard, register_card

SOURCE = Path(ew.__file__).parents[1]
ROOTS = tuple(f"{SOURCE / name}{os.sep}" for name in ("envweave_gym", "envweave_gym_server"))
_NOT_FUNCTIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
TRACED_STEP = 100


class Walk:
    """The calls of functions of this package since :meth:`begin`, in the calling thread."""

    def __init__(self) -> None:
        self.functions: list[str] = []
        self.files: set[str] = set()

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOTS) and code.co_name not in _NOT_FUNCTIONS:
            self.functions.append(code.co_qualname)
            self.files.add(code.co_filename)

    def begin(self) -> None:
        """Count from now on."""
        gc.disable()  # finalizers would be counted
        sys.setprofile(self._called)

    def end(self) -> None:
        """Stop counting."""
        sys.setprofile(None)
        gc.enable()


def walk_of(call: Callable[[], Any]) -> Walk:
    """What one call goes through, after others have warmed up."""
    for _ in range(3):
        call()
    walk = Walk()
    walk.begin()
    try:
        call()
    finally:
        walk.end()
    return walk


class TracedEnv(gym.Env[int, int]):
    """Counts what its server does between two of its steps, and tells it in the ``info`` of the third."""

    observation_space = gym.spaces.Discrete(2)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self._steps, self._walk = 0, Walk()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        info: dict[str, Any] = {}
        if self._steps == TRACED_STEP + 1:
            self._walk.end()
            info = {"functions": " ".join(self._walk.functions), "files": " ".join(self._walk.files)}
        if self._steps == TRACED_STEP:
            self._walk.begin()
        return 0, 0.0, False, False, info


TRACED = "benchmarks/Traced-v0"
CARDS = [EnvCard(id=TRACED, doc="Counts calls of its server.", gym="benchmarks.walks:TracedEnv")]


def step_here() -> Walk:
    env = gym.make("envweave/Counter-v0", target=100)
    return _step_of(env)


def step_in_a_subprocess() -> Walk:
    env = gym.make("envweave/Counter-v0", target=100, backend="subprocess")
    return _step_of(env)


def _step_of(env: gym.Env[Any, Any]) -> Walk:
    env.reset(seed=0)
    action = env.action_space.sample()
    try:
        return walk_of(lambda: env.step(action))
    finally:
        env.close()


def step_of_the_subprocess() -> Walk:
    """The same step, in the process of the server, which knows the ID by a plug-in on its path."""
    register_card(CARDS[0], package="benchmarks")
    with tempfile.TemporaryDirectory() as folder:
        plug_in = Path(folder, "walks-1.dist-info")
        plug_in.mkdir()
        (plug_in / "METADATA").write_text("Metadata-Version: 2.1\nName: walks\nVersion: 1\n")
        (plug_in / "entry_points.txt").write_text("[envweave_gym.envs]\nwalks = benchmarks.walks:CARDS\n")
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, str(SOURCE), os.environ.get("PYTHONPATH", "")])
        return _traced_by_a_subprocess()


def _traced_by_a_subprocess() -> Walk:
    env = gym.make(TRACED, backend="subprocess")
    env.reset(seed=0)
    infos = [env.step(0)[4] for _ in range(TRACED_STEP + 1)]
    env.close()
    walk = Walk()
    walk.functions, walk.files = infos[-1]["functions"].split(), set(infos[-1]["files"].split())
    return walk


def vector_here() -> Walk:
    return _step_of_vector()


def vector_in_a_subprocess() -> Walk:
    return _step_of_vector(backend="subprocess")


def _step_of_vector(**kwargs: Any) -> Walk:
    envs = ew.make("envweave/LineWorld-v0", num_envs=8, **kwargs)
    envs.reset(seed=0)
    actions = envs.action_space.sample()
    try:
        return walk_of(lambda: envs.step(actions))
    finally:
        envs.close()


def codeact_with_a_tool() -> Walk:
    env = gym.make("envweave/CodeAct-v0", tools=[doubled], max_steps=100)
    env.reset(seed=0)
    try:
        return walk_of(lambda: env.step("print(doubled(x=21))"))
    finally:
        env.close()


def doubled(x: int) -> int:
    """Twice the number."""
    return 2 * x


def kuhn_parallel() -> Walk:
    env: Any = pettingzoo.make("parallel", "envweave/KuhnPoker-v0")

    def start() -> dict[str, Any]:
        _, infos = env.reset(seed=0)
        return {agent: 0 for agent, info in infos.items() if info["active"]}

    return _first_move(start, env.step)


def kuhn_aec() -> Walk:
    env: Any = pettingzoo.make("aec", "envweave/KuhnPoker-v0")

    def start() -> int:
        env.reset(seed=0)
        return 0

    return _first_move(start, env.step)


def _first_move(start: Callable[[], Any], step: Callable[[Any], Any]) -> Walk:
    """The first move of a game, after those of other episodes."""
    for _ in range(3):
        step(start())
    action, walk = start(), Walk()
    walk.begin()
    try:
        step(action)
    finally:
        walk.end()
    return walk


def docker_start() -> Walk:
    """From ``make`` to the first observation: what of it is in the folders of providers and containers.

    Another container was started before, so that nothing is imported meanwhile.
    """
    walk = Walk()
    for memory in ("300m", "301m"):
        if memory == "301m":
            walk.begin()
        with closing(gym.make("envweave/Counter-v0", backend="docker", memory=memory)) as env:
            env.reset(seed=0)
    walk.end()
    rooms = tuple(f"{SOURCE / 'envweave_gym' / room}{os.sep}" for room in ("providers", "containers"))
    walk.files = {file for file in walk.files if file.startswith(rooms)}
    return walk


# The server's own walk comes first: a server that runs already would not know the plug-in.
WALKS: dict[str, tuple[Callable[[], Walk], int | None, int | None]] = {
    "a step in a subprocess, the server": (step_of_the_subprocess, 20, 5),
    "a step in this process": (step_here, None, None),
    "a step in a subprocess, the client": (step_in_a_subprocess, 20, 5),
    "a native vector step in this process": (vector_here, None, None),
    "a native vector step in a subprocess, the client": (vector_in_a_subprocess, 35, 9),
    "a CodeAct step with a tool": (codeact_with_a_tool, 80, 10),
    "a parallel step of Kuhn poker": (kuhn_parallel, 50, None),
    "a step of Kuhn poker, AEC": (kuhn_aec, None, None),
    "a container is started": (docker_start, None, 15),
}
"""Each walk, and how many calls and files it may take."""


def main() -> None:
    rows: list[dict[str, Any]] = []
    for name, (walk, calls, files) in WALKS.items():
        if walk is docker_start and not shutil.which("docker"):
            continue
        found = walk()
        rows.append(
            {
                "walk": name,
                "calls": len(found.functions),
                "at most": calls or "",
                "files": len(found.files),
                "at most ": files or "",
            }
        )
        if "--list" in sys.argv:
            print(f"\n{name}\n  " + "\n  ".join(found.functions))
    show("Walks: our calls and files", rows)


if __name__ == "__main__":
    main()
