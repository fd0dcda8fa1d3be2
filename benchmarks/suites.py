"""Suites with contradictory pins, each in a virtual environment of its own, stepped by one process.

    python -m benchmarks suites
    python -m benchmarks.suites NAME…

Each row, as in ``docs/benchmarks.md``: megabytes of the environment, seconds from ``make`` to the first observation
with a warm cache, and microseconds a step (the fastest decile): the environment's own in its Python, and what a step
over the socket adds to it. A suite that cannot be measured has a row with the reason.
Installs need the network and ``ENVWEAVE_INSTALL=1``.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import envweave_gym
from envweave_gym.suites.requirement_lists import with_inside
from envweave_gym.suites.virtual_environments import interpreter_of

STEPS, LONGEST_S = 300, 15.0
"""Steps that are timed, and the time after which no more are: one of highway-env takes 0.1 s and more."""
ATARI_TARGET_US, TARGET_US, START_TARGET_S = 150, 100, 1.5


@dataclass(frozen=True)
class Case:
    """A suite, and an ID of it that is stepped."""

    name: str
    env_id: str
    requirements: tuple[str, ...]
    python: str | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)


SUITES = [
    Case("gymnasium 0.28", "CartPole-v1", ("gymnasium==0.28.1", "numpy<2")),
    Case("gymnasium 0.29", "Acrobot-v1", ("gymnasium==0.29.1", "numpy<2")),
    Case("gymnasium 1.0", "MountainCar-v0", ("gymnasium==1.0.0",)),
    Case("gymnasium 1.1 toy text", "Taxi-v3", ("gymnasium==1.1.1",)),
    Case("gym 0.26", "CartPole-v1", ("gym==0.26.2", "numpy<2")),
    Case("gym 0.23", "CartPole-v1", ("gym==0.23.1", "numpy<1.24", "pygame")),
    Case("gym 0.22", "MountainCar-v0", ("gym==0.22.0", "numpy<1.24", "pygame")),
    Case("box2d", "LunarLander-v3", ("gymnasium[box2d]==1.3.0",)),
    Case("ale-py", "ALE/Pong-v5", ("ale-py==0.12.1", "gymnasium==1.3.0")),
    Case("ale-py old", "ALE/Breakout-v5", ("ale-py==0.10.1", "gymnasium==1.0.0", "numpy<2")),
    Case("minigrid", "MiniGrid-Empty-5x5-v0", ("minigrid==3.2.0",)),
    Case("minigrid old", "MiniGrid-Empty-5x5-v0", ("minigrid==2.3.1", "gymnasium==0.29.1", "numpy<2")),
    Case("highway-env", "highway-v0", ("highway-env==1.12.1",)),
    Case("nle", "NetHackScore-v0", ("nle==1.3.0",)),
    Case("mo-gymnasium", "deep-sea-treasure-v0", ("mo-gymnasium==1.3.2",), kwargs={"reward": "sum"}),
    Case("mujoco", "Hopper-v5", ("gymnasium[mujoco]==1.2.0", "mujoco==3.3.0")),
    Case("robotics", "FetchReach-v4", ("gymnasium-robotics==1.4.2", "mujoco==3.2.7")),
    Case("vizdoom", "vizdoom.gymnasium_wrapper:VizdoomBasic-v1", ("vizdoom==1.3.2",)),
    Case("lbforaging", "Foraging-8x8-2p-1f-v3", ("lbforaging==2.0.0",), kwargs={"reward": "sum"}),
    Case("crafter", "crafter:Env", ("crafter==1.8.3", "gym==0.26.2", "numpy<2")),
    Case("procgen2", "procgen2:procgen-coinrun-v0", ("procgen2==0.10.7",)),
    Case("mpe2", "mpe2/simple_spread_v3", ("mpe2==1.1.1",)),
    Case(
        "pettingzoo 1.24", "classic/rps_v2", ("pettingzoo[classic]==1.24.3", "gymnasium==0.29.1", "numpy<2")
    ),
]


def main(names: Sequence[str] = ()) -> None:
    print("| suite | requirements | MB | start, s | own, us | added, us |\n|---|---|---|---|---|---|")
    chosen = [one for one in SUITES if not names or any(name in one.name for name in names)]
    opened: list[tuple[Case, Any]] = []
    for suite in chosen:
        try:
            env, row = measured(suite)
        except Exception as error:  # noqa: BLE001 - its row says it, and the others are measured
            row = [f"{type(error).__name__}: {' '.join(str(error).split())[:200]}", "", "", ""]
        else:
            opened.append((suite, env))
        print(f"| {suite.name} | `{', '.join(suite.requirements)}` | {' | '.join(row)} |", flush=True)
    print(f"\n{len(opened)} of {len(chosen)} suites open in one process: {together(opened)}")
    for _, env in opened:
        env.close()


def measured(suite: Case) -> tuple[Any, list[str]]:
    interpreter = interpreter_of(with_inside(suite.requirements), python=suite.python, what=suite.name)
    folder = interpreter.parent.parent
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20
    make(suite).close()  # compiles, and fills the disk cache
    starts: list[float] = []
    for _ in range(3):
        began = time.monotonic()
        env = make(suite)
        env.reset(seed=0)
        starts.append(time.monotonic() - began)
        env.close()
    env = make(suite)
    here = step_us(env)
    own = own_step_us(suite, interpreter)
    added = "" if own is None else f"{here - own:.0f}"
    return env, [
        f"{size:.0f}",
        f"{min(starts):.2f}",
        "" if own is None else f"{own:.0f}",
        added,
    ]


def make(suite: Case) -> Any:
    return envweave_gym.make(
        suite.env_id,
        backend="venv",
        requirements=list(suite.requirements),
        python=suite.python,
        **suite.kwargs,
    )


def step_us(env: Any) -> float:
    """The fastest decile of steps with random actions, in microseconds: other load has little part in it."""
    times: list[float] = []
    env.reset(seed=0)
    is_game = hasattr(env, "possible_agents")
    end = time.monotonic() + LONGEST_S
    while len(times) < STEPS and (len(times) < 10 or time.monotonic() < end):
        if is_game:
            action: Any = {agent: env.action_space(agent).sample() for agent in env.agents}
        else:
            action = env.action_space.sample()
        began = time.perf_counter()
        result = env.step(action)
        times.append(time.perf_counter() - began)
        if (is_game and not env.agents) or (not is_game and (result[2] or result[3])):
            env.reset()
    return statistics.quantiles(times, n=10)[0] * 1e6


OWN = """
import sys, time, statistics
sys.path.insert(0, sys.argv[1])
import inside.find_environment as find
from inside.hosted import hosted
env = hosted(find.find_and_make(find.Wanted(sys.argv[2], {}, None, sys.argv[5:])), None).env
env.reset(seed=0)
times = []
if hasattr(env, "possible_agents"):
    sample = lambda: {one: env.action_space(one).sample() for one in env.agents}
else:
    sample = env.action_space.sample
end = time.monotonic() + float(sys.argv[4])
while len(times) < int(sys.argv[3]) and (len(times) < 10 or time.monotonic() < end):
    action = sample()
    began = time.perf_counter()
    result = env.step(action)
    times.append(time.perf_counter() - began)
    if not env.agents if hasattr(env, "possible_agents") else result[2] or result[3]:
        env.reset()
print(statistics.quantiles(times, n=10)[0] * 1e6)
"""


def own_step_us(suite: Case, interpreter: Path) -> float | None:
    """The same in the suite's own Python, without any socket."""
    folder = Path(envweave_gym.__file__).parent / "suites"
    names = [one.partition("=")[0].partition("<")[0].partition("[")[0] for one in suite.requirements]
    words = [interpreter, "-I", "-c", OWN, str(folder), suite.env_id, str(STEPS), str(LONGEST_S), *names]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        print(done.stderr.strip()[-300:], file=sys.stderr)
        return None
    return float(done.stdout.split()[-1])


def together(opened: list[tuple[Case, Any]]) -> str:
    """Step all suites in turn, and say how many steps that were a second."""
    steps, began = 0, time.monotonic()
    while steps < 50 * len(opened) and time.monotonic() < began + LONGEST_S:
        for _, env in opened:
            if hasattr(env, "possible_agents"):
                if not env.agents:
                    env.reset()
                env.step({agent: env.action_space(agent).sample() for agent in env.agents})
            else:
                result = env.step(env.action_space.sample())
                if result[2] or result[3]:
                    env.reset()
            steps += 1
    return f"{steps} steps in turn, {steps / (time.monotonic() - began):.0f} a second"


if __name__ == "__main__":
    os.environ.setdefault("ENVWEAVE_INSTALL", "0")
    main(sys.argv[1:])
