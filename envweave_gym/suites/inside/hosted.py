"""Environments of the suite behind calls: one class for each API, with methods that return packed results."""

from __future__ import annotations

import sys
from typing import Any

from . import codec
from .describe_spaces import parts_of, space_to_data
from .find_environment import Found, WrongApi

_AEC_RESULTS = ("rewards", "terminations", "truncations")


class Hosted:
    """Base of an environment behind calls."""

    api = ""

    def __init__(self, env: Any) -> None:
        self.env = env

    def describe(self) -> dict[str, Any]:
        """Return what the owner must know to stand for the environment."""
        metadata = dict(getattr(self.env, "metadata", None) or {})
        return {
            "api": self.api,
            "metadata": codec.readable(metadata),
            "render_mode": codec.readable(getattr(self.env, "render_mode", None)),
        }

    def render(self) -> Any:
        """Return the rendering."""
        return codec.exact(self.env.render())

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def attribute(self, name: str) -> Any:
        """Return a public attribute of the environment or of what it wraps."""
        if name.startswith("_"):
            raise AttributeError(name)
        layer = self.env
        while True:
            if hasattr(type(layer), name) or name in getattr(layer, "__dict__", {}):
                value = getattr(layer, name)
                break
            inner = getattr(layer, "env", None)
            if inner is None or inner is layer:
                value = getattr(self.env, name)
                break
            layer = inner
        if callable(value):
            raise AttributeError(f"{name} is a method, which cannot be called from another process")
        return codec.exact(value)

    def space(self, which: str, agent: Any, path: list[int], question: str, argument: Any) -> Any:
        """Answer for a space whose class only the suite has: whether it contains a value, or a sample."""
        space = getattr(self.env, which)
        space = space if agent is None else space(agent)
        for index in path:
            space = parts_of(space)[index]
        if question == "contains":
            return bool(space.contains(argument))
        space.seed(argument)
        return codec.exact(space.sample())


class SingleEnv(Hosted):
    """A Gymnasium environment."""

    api = "gym"

    def __init__(self, env: Any, limit: Any = None) -> None:
        """``limit`` replaces the step limit that the environment was registered with; -1 is none."""
        Hosted.__init__(self, env)
        self._limited = limit is None or _set_limit(env, sys.maxsize if limit == -1 else limit)
        self._spaces: Any = None
        self._described: Any = None

    def describe(self) -> dict[str, Any]:
        """Add the spaces, whether the step limit was set, and the fields of the spec."""
        spec = getattr(self.env, "spec", None)
        fields = ("id", "reward_threshold", "nondeterministic", "max_episode_steps")
        known = {
            name: getattr(spec, name, None) for name in fields if isinstance(getattr(spec, "id", None), str)
        }
        self._changed_spaces()
        described = Hosted.describe(self)
        return {
            **described,
            "spaces": self._described,
            "limited": self._limited,
            "spec": codec.readable(known),
        }

    def reset(self, seed: Any, options: Any) -> Any:
        """Reset; return observation and info, and the spaces if they have changed."""
        result = (
            self.env.reset(seed=seed, options=options) if options is not None else self.env.reset(seed=seed)
        )
        changed = self._changed_spaces()
        if type(result) is tuple and len(result) == 2:
            return [codec.exact(result[0]), codec.readable(result[1]), changed]
        return codec.readable(_tuple_of(result))

    def step(self, action: Any) -> Any:
        """Step; return the five results as a list, or whatever the environment returned in place of them."""
        result = self.env.step(action)
        if type(result) is not tuple or len(result) != 5:
            return codec.readable(_tuple_of(result))
        observation, reward, terminated, truncated, info = result
        if type(reward) is not float:
            reward = codec.exact(reward)
        if type(terminated) is not bool or type(truncated) is not bool:
            terminated, truncated = codec.exact(terminated), codec.exact(truncated)
        return [codec.exact(observation), reward, terminated, truncated, codec.readable(info)]

    def _changed_spaces(self) -> Any:
        """Return the data of both spaces if they are others than at the last call, else ``None``."""
        spaces = self.env.observation_space, self.env.action_space
        if self._spaces is not None and all(new is old for new, old in zip(spaces, self._spaces)):
            return None
        described = [space_to_data(one) for one in spaces]
        self._spaces, before, self._described = spaces, self._described, described
        return None if codec.encode(described) == codec.encode(before) else described


def _tuple_of(result: Any) -> Any:
    """Return a result that is not what it should be, so that it arrives as a tuple or as itself, never as a list."""
    return tuple(result) if isinstance(result, tuple) else [result]


def _set_limit(env: Any, limit: int) -> bool:
    """Set the step limit of the wrapper ``TimeLimit``; return whether there is one."""
    layer = env
    while layer is not None:
        if type(layer).__name__ == "TimeLimit" and hasattr(layer, "_max_episode_steps"):
            layer._max_episode_steps = limit
            return True
        inner = getattr(layer, "env", None)
        layer = None if inner is layer else inner
    return False


class Game(Hosted):
    """Base of a PettingZoo game."""

    def describe(self) -> dict[str, Any]:
        """Add the agents with their spaces, and whether there is a global state."""
        agents = getattr(self.env, "possible_agents", None)
        if agents is None:
            raise WrongApi("it has no possible_agents, which its spaces are needed of")
        spaces = {
            agent: {
                "observation_space": space_to_data(self.env.observation_space(agent)),
                "action_space": space_to_data(self.env.action_space(agent)),
            }
            for agent in agents
        }
        state = getattr(type(getattr(self.env, "unwrapped", self.env)), "state", None)
        has_state = state is not None and getattr(state, "__module__", "") != "pettingzoo.utils.env"
        return {**Hosted.describe(self), "agents": spaces, "has_state": has_state}

    def global_state(self) -> Any:
        """Return PettingZoo's global state."""
        return codec.exact(self.env.state())


class ParallelGame(Game):
    """A game whose agents act at once."""

    api = "parallel"

    def reset(self, seed: Any, options: Any) -> Any:
        """Reset; return observations, infos and agents."""
        observations, infos = self.env.reset(seed=seed, options=options)
        return [codec.exact(dict(observations)), codec.readable(dict(infos)), list(self.env.agents)]

    def step(self, actions: Any) -> Any:
        """Step; return the five tables and the agents that are left."""
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        tables = (codec.exact(dict(table)) for table in (observations, rewards, terminations, truncations))
        return [*tables, codec.readable(dict(infos)), list(self.env.agents)]


class TurnGame(Game):
    """A game whose agents act one at a time."""

    api = "aec"

    def reset(self, seed: Any, options: Any) -> Any:
        """Reset; return the state of the game."""
        self.env.reset(seed=seed, options=options)
        return self._state()

    def step(self, action: Any) -> Any:
        """Let the selected agent act; return the state of the game."""
        self.env.step(action)
        return self._state()

    def observe(self, agent: str) -> Any:
        """Return the observation of an agent."""
        return codec.exact(self.env.observe(agent))

    def _state(self) -> Any:
        env = self.env
        agents = list(env.agents)
        selected = env.agent_selection if agents else None
        tables = {name: codec.exact(dict(getattr(env, name))) for name in _AEC_RESULTS}
        infos, earned = codec.readable(dict(env.infos)), codec.exact(dict(env._cumulative_rewards))
        seen = codec.exact(env.observe(selected)) if agents else None
        return {
            "agents": agents,
            "selected": selected,
            "seen": seen,
            "infos": infos,
            "earned": earned,
            **tables,
        }


def hosted(found: Found, limit: Any) -> Hosted:
    """Return the environment behind calls."""
    if found.api == "gym":
        return SingleEnv(found.env, limit)
    return ParallelGame(found.env) if found.api == "parallel" else TurnGame(found.env)
