"""Source of the package ``toy_suite``, which tests install into a virtual environment of its own."""

from __future__ import annotations

TOY_SUITE = {
    "toy_suite/__init__.py": """
import sys
print("toy_suite is imported", flush=True)
assert sys.stdin.read() == ""
import gymnasium as gym
from toy_suite.envs import Shown

for name in ("Walk", "Images", "Odd", "Fails", "Spaces", "Closes", "Detached", "Masks"):
    gym.register(f"toy/{name}-v0", entry_point=f"toy_suite.envs:{name}", max_episode_steps=20)
gym.register("toy/Walk-v2", entry_point="toy_suite.envs:Walk", max_episode_steps=20)
gym.register("toy/Free-v0", entry_point="toy_suite.envs:Walk")
""",
    "toy_suite/envs.py": '''
import os, signal, subprocess, sys, time
import numpy as np
import gymnasium as gym
from gymnasium import spaces


class Shown(spaces.Text):
    """A space of a class that only this package has."""
    def __init__(self): super().__init__(8, charset="ab")
    def __repr__(self): return None[0]
    def contains(self, x): return isinstance(x, str) and set(x) <= set("ab")
    def sample(self, mask=None, probability=None): return "ab"


class Walk(gym.Env):
    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}
    size = 5

    def __init__(self, render_mode=None, length=5):
        if length < 1: raise ValueError("length must be at least 1")
        self.render_mode, self.length = render_mode, length
        self.observation_space = spaces.Box(-length, length, (2,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = int((options or {}).get("place", 0))
        return self.seen(), {"seed": seed, "pid": os.getpid(), "pair": (1, 2)}

    def seen(self):
        return np.array([self.place, self.np_random.random()], np.float32)

    def step(self, action):
        self.place += 1 if action else -1
        over = abs(self.place) >= self.length
        return self.seen(), 1.0 if over else 0.0, over, False, {"place": np.int64(self.place)}

    def render(self):
        if self.render_mode == "ansi": return f"at {self.place}"
        return np.full((4, 4, 3), self.place % 256, np.uint8)


class Images(Walk):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.observation_space = spaces.Box(0, 255, (210, 160, 3), np.uint8)
    def seen(self): return np.full((210, 160, 3), self.place % 256, np.uint8)


class Tensor:
    dtype, shape = "float32", (2,)
    def __array__(self, *args, **kwargs): raise RuntimeError("requires grad")
    def __repr__(self): return "Tensor(1, 2)"


class Odd(Walk):
    """Infos with objects that no other process has, and cycles."""
    def step(self, action):
        *others, info = super().step(action)
        chain = []
        for _ in range(40): chain = [chain, chain]
        cycle = {}; cycle["self"] = cycle; cycle["again"] = cycle
        info.update(tensor=Tensor(), chain=chain, cycle=cycle, lone="\\ud800", big=1 << 100, plain={1: {"a"}})
        return (*others, info)


class Fails(Walk):
    def __init__(self, how="raise", **kwargs):
        super().__init__(**kwargs)
        self.how = how
    def step(self, action):
        if self.place:
            if self.how == "raise": return 1 / 0
            if self.how == "own": raise type("OwnError", (Exception,), {})("a sentence of its own")
            if self.how == "exit": sys.exit(3)
            if self.how == "die": os.kill(os.getpid(), signal.SIGSEGV)
            if self.how == "say": print("last words of the suite", file=sys.stderr, flush=True); os._exit(7)
            if self.how == "hang": time.sleep(3600)
            if self.how == "four": return super().step(action)[:4]
            if self.how == "object": return object(), 0.0, False, False, {}
            if self.how == "shape": return np.zeros(3, np.float32), 0.0, False, False, {}
        return super().step(action)


class Spaces(Walk):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.action_space = spaces.Dict(word=Shown(), number=spaces.MultiDiscrete([2, 3]))
    def step(self, action): return super().step(action["word"] == "ab")
    def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed, options=options)
        if (options or {}).get("more"): self.action_space = spaces.Discrete(9)
        return result


class Closes(Walk):
    def close(self): raise RuntimeError("cannot close")


class Detached(Walk):
    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed, options=options)
        self.child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
        return observation, {**info, "child": self.child.pid, "python": sys.executable, "path": os.environ["PATH"]}


class Masks(Walk):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], {"hash": hash("abc"), "variables": sorted(os.environ)}
''',
    "toy_suite/duel_v1.py": """
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv, AECEnv
from pettingzoo.utils.agent_selector import AgentSelector


class Duel(ParallelEnv):
    metadata = {"name": "duel_v1", "render_modes": []}
    def __init__(self, render_mode=None, fails_at=99):
        self.possible_agents, self.render_mode, self.fails_at = ["a", "b"], render_mode, fails_at
        self.spaces = {one: spaces.Discrete(3) for one in self.possible_agents}
    def observation_space(self, agent): return self.spaces[agent]
    def action_space(self, agent): return self.spaces[agent]
    def reset(self, seed=None, options=None):
        self.random, self.turn, self.agents = np.random.default_rng(seed), 0, ["a", "b"]
        return self.seen(), {one: {} for one in self.agents}
    def seen(self): return {one: int(self.random.integers(3)) for one in self.possible_agents}
    def step(self, actions):
        self.turn += 1
        if self.turn >= self.fails_at: raise ZeroDivisionError("at last")
        over = self.turn == 4
        result = (self.seen(), {one: float(actions[one]) for one in self.agents},
                  *({one: flag for one in self.agents} for flag in (over, False)), {one: {} for one in self.agents})
        if over: self.agents = []
        return result


class Turns(AECEnv):
    metadata = {"name": "turns_v1", "render_modes": []}
    def __init__(self, render_mode=None):
        super().__init__()
        self.possible_agents, self.render_mode = ["a", "b"], render_mode
        self.spaces = {one: spaces.Discrete(3) for one in self.possible_agents}
    def observation_space(self, agent): return self.spaces[agent]
    def action_space(self, agent): return self.spaces[agent]
    def reset(self, seed=None, options=None):
        self.random, self.turn, self.agents = np.random.default_rng(seed), 0, ["a", "b"]
        self.rewards, self._cumulative_rewards = ({one: 0.0 for one in self.agents} for _ in range(2))
        self.terminations, self.truncations = ({one: False for one in self.agents} for _ in range(2))
        self.infos = {one: {} for one in self.agents}
        self.selector = AgentSelector(self.agents)
        self.agent_selection, self.shown = self.selector.next(), self.deal()
    def deal(self): return {one: int(self.random.integers(3)) for one in self.possible_agents}
    def observe(self, agent): return self.shown[agent]
    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent]: return self._was_dead_step(action)
        self._cumulative_rewards[agent] = 0
        self.rewards = {one: float(action) if one == agent else 0.0 for one in self.agents}
        self.turn += 1
        self.shown = self.deal()
        if self.turn == 6: self.terminations = {one: True for one in self.agents}
        self.agent_selection = self.selector.next()
        self._accumulate_rewards()


parallel_env, env = Duel, Turns
""",
}
